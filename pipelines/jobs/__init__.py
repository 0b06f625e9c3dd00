"""Durable jobs: their submission, their summaries, and the worker processes that run them as
`translate` runs its studies.

May import run. Must not be imported by it, nor write tables itself.
"""
