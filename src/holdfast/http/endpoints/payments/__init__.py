"""Endpoints of payment orders, and of the payment providers' notifications."""
