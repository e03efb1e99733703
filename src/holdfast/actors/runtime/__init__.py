"""The actor runtime: a trio actor on pykka, its mailbox, its futures, and what messages are made of."""
