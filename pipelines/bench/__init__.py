"""Measurements of a network under many settings and against rivals, each in its own process.

May import engine's benchmark. Must not render.
"""
