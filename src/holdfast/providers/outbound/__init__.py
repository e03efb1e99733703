"""Safe outbound HTTP: requests to URLs chosen by callers and providers, within bounds.

Addresses are checked when a connection is made, responses are read up to a limit, and ``Retry-After`` is honoured.
"""
