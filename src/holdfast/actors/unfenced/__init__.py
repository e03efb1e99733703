"""Durable writes that depend on no actor's state: they have no fence, and may be repeated."""
