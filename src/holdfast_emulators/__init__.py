"""Servers that imitate external systems, for development and tests: a card provider and a media provider.

A distribution of its own, which production does not need: ``holdfast`` starts the emulators if they are installed.
"""
