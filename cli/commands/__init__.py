"""One file a command: options in, a call into pipelines, and what is rendered out.

May import options and render. Must not format tables itself, nor be imported by them.
"""
