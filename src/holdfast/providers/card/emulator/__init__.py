"""A stand-in for the card provider, for development and tests: the same wire, its own little world behind it."""
