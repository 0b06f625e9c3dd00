"""The queue: jobs, schedule, claims and living workers; on SQLite or PostgreSQL.

May import settings and files. Must not run jobs.
"""
