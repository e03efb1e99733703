"""Queries: functions that take a connection and return frozen typed values. They never write."""
