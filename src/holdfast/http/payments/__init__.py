"""Calls about payment orders, and the notices by which payments are heard of."""
