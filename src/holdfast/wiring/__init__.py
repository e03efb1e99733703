"""How the parts are put together: actors and workers, the card provider, the shelf, the whole."""
