"""A training checkpoint becomes a model: what it tells, what is assumed, what must be said.

May import engine's checkpoint and model. Must not ask the user itself.
"""
