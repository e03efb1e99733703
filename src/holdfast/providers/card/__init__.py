"""Card payments: the interface of a card provider, the adapter for the real one, and an emulator of it."""
