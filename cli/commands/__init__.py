"""One file a command: options in, a call into pipelines, and what is rendered out.

May import options and render, which must not import it. Must not format tables itself.
"""
