"""Reports: one typed record for everything an operator should know of, from its emission to its readers."""
