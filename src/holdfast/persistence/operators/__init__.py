"""What operators did, their sessions, poison messages and provider checks. None needs an actor or the journal."""
