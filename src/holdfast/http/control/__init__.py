"""Calls about oneself: signing in, the session, the account, its keys, its statement."""
