"""The sign-in actor and its messages."""
