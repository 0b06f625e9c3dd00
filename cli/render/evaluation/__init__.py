"""How an evaluation looks: tables for a terminal, and the page with the worst studies first.

May import evaluations and what pages are built of. Must not read scans or compute figures.
"""
