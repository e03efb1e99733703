"""Endpoints of an account's owner: sign-in, session, account, API keys, statement."""
