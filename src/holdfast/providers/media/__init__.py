"""Where media jobs are done: one protocol for every provider, the shape of its news, and the adapters."""
