"""Queue commands: they submit, show and run jobs.

May import options and render, which must not import it. Must not format tables itself.
"""
