"""Calling out without coming to harm: to addresses that strangers chose, and within bounds wherever a call leads.

An address is judged where the connection is made, an answer's body is read up to a limit, a call that is cancelled
leaves nothing behind, and a server that wishes for a pause is heard. Whom to call, and why, the callers decide.
"""
