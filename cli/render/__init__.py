"""Output for people and scripts: terminal streams, tables, progress and JSON texts.

May import the records it shows. Must not start work, nor depend on the calling command.
"""
