"""Descriptions of commands in the formats of other programs, from the options' declarations.

May import options and what they are declared with. Must not run a command.
"""
