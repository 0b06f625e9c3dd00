"""How near results are to the truth: pairs, grids, protocols, metrics, and the report of them.

May import pictures of volumes and what reads scans. Must not know models, devices or how a result
was made.
"""
