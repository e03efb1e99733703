"""Card payments: what the house asks of a card provider, the adapter for the real one, and a stand-in for it."""
