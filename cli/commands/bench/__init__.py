"""The bench command: one setting, several devices' rivals, a sweep over settings.

May import options and render. Must not format tables itself, nor be imported by them.
"""
