"""What everything on a screen is made of: streams, words and numbers, tables, a sign of life.

May import nothing but errors of its own. Must not know studies, jobs or commands.
"""
