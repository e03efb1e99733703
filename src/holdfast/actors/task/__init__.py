"""The task actor and its messages."""
