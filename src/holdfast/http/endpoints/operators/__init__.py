"""Endpoints for operators: health, metrics, reviews, held payments."""
