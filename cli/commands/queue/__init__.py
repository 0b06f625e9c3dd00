"""Queue commands: they submit, show and run jobs.

May import options and render. Must not format tables itself, nor be imported by them.
"""
