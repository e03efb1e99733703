"""Endpoints for operators, by subject, and their sessions in a browser."""
