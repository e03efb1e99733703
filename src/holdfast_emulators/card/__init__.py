"""An emulator of the card provider, for development and tests: the same API with its own state."""
