"""The demo: the whole journey on a service of its own."""
