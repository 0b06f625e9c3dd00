"""The bench command: one setting measured against its rivals, and a sweep over settings.

May import options and render, which must not import it. Must not format tables itself.
"""
