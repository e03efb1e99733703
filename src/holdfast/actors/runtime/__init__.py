"""The actor runtime: an actor on trio and pykka, its mailbox, its future, its address and its messages."""
