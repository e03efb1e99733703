"""Figures, each beside the conditions it was measured under and a baseline of the same run."""
