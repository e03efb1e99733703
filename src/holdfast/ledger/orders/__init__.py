"""Payment orders: facts reported by payment providers, what they mean, and the credit that follows from them."""
