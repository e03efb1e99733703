"""Media providers: the interface, the adapters, and how their callbacks are parsed."""
