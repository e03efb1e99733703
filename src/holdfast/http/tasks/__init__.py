"""Calls about media tasks: their life, their news, their results, their events and what they cost."""
