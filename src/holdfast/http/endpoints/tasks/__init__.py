"""Calls about media tasks, their outputs, events and usage, and the providers' callbacks."""
