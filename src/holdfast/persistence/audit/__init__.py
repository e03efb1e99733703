"""The audit: every promise about credit checked against the rows."""
