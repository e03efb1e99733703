"""How the parts are put together: actors and workers, the card provider, the provider registry, the whole."""
