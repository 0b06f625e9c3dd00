"""Import of a training checkpoint as a model: facts found in it, assumptions, and open questions.

May import engine's checkpoint and model. Must not ask the user itself.
"""
