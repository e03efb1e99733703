"""Request and response bodies, and the rendering of values."""
