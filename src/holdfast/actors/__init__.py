"""Actors, which own all state: the actor on trio and pykka, and the accounts, sign-ins, tasks and workers."""
