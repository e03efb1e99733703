"""Tables, and the mapping between their rows and values."""
