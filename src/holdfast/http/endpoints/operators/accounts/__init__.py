"""Accounts: their credit and access, tasks and reviews, failed deliveries, time lines."""
