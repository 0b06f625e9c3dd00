"""Options shared by several commands, each defined once: its name, its help and how its value is
read.

May import the records that options fill. Must not know what a command does with them.
"""
