"""The account's own pages, by subject. Every module here whose ``view`` is a view table is served."""
