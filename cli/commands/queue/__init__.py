"""The commands of the queue: what submits, shows and works off jobs.

May import options and render. Must not format tables itself, nor be imported by them.
"""
