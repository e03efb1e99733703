"""Events of accounts, and what is announced to their owners."""
