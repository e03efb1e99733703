"""The payment endpoints and the payment providers' webhooks."""
