"""Calls about payment orders, and the payment providers' notifications."""
