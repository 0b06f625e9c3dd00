"""Which cards, packages and copies of cuDNN this machine has; loads none of them.

May import nothing of the engine but errors.
"""
