"""Durable writes that belong to no actor's decision, so they have no fence; repeating one does no harm."""
