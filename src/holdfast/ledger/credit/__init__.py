"""Credit: the state of one account, and the operations that change it."""
