"""Calls about the caller: sign-in, session, account, API keys, statement."""
