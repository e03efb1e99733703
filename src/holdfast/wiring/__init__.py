"""The composition of the service: actors, workers, HTTP server, media providers and card provider."""
