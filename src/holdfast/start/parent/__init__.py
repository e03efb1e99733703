"""The parent of the worker processes, without application code.

It owns what must outlive a worker: the listening sockets and the embedded database. It starts, watches and replaces
workers, and imports nothing that a new release of the application is likely to change.
"""
