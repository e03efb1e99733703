"""The audit: the rules about credit, checked against the rows."""
