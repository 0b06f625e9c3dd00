"""One scan in memory: from a volume to a translated volume, stage by stage.

May import engine and io. Must not depend on batches, queues, output folders or reports.
"""
