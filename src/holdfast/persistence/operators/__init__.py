"""The records of operators: their actions and their sessions. They need neither an actor nor the journal."""
