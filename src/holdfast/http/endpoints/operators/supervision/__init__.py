"""The processes: whether they are ready, their trees, actors and poison messages."""
