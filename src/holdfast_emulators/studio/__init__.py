"""The studio: an in-tree media provider that renders images, sounds and clips, for development and tests.

It is a separate HTTP server with its own secret; it shares only the signature scheme and the guarded client with
the service. It implements the prediction protocol of self-hosted model containers.
"""
