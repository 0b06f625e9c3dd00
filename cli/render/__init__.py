"""What people and scripts see: terminal streams, tables, progress and JSON texts.

May import the records it shows. Must not start work, nor know which command asked.
"""
