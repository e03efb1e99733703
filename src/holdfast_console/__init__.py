"""Pages: HTML of what endpoints return, and forms for what they do, for accounts and for operators."""
