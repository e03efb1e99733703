"""Calls of those who run the service: what they decide about reviews and payments."""
