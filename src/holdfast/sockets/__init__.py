"""Listening and connected sockets."""
