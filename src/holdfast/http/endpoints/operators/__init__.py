"""Operators' calls: health, reviews, held payments."""
