"""The API of Replicate's clients below ``/replicate``: predictions are the account's tasks, under the same ids.

Everything here translates: a request into what the native endpoint takes, a task into a prediction. Statuses, ids,
links and errors have the forms that these clients read, for whose peculiarities see docs/clients.md.
"""
