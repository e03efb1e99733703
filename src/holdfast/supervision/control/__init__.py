"""The control actor of a process: what operators see of its tree and its actors, and what they do with them."""
