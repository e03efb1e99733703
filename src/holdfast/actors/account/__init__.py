"""The account actor and its messages."""
