"""Endpoints of media tasks, their results, events and usage, and of the media providers' callbacks."""
