"""What callers may do with tasks and files, whichever API they call: the endpoints and all extensions use it."""
