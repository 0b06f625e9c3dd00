"""The report page: HTML built as a tree, inline SVG, one style sheet.

May import reports and comparisons. Must not read report files, nor need a network.
"""
