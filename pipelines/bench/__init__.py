"""Measurements of a network under many settings and beside rivals, each in a process of its own.

May import engine's benchmark. Must not render.
"""
