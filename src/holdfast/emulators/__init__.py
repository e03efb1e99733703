"""Servers that imitate external systems, for development and tests: a card provider and a media provider."""
