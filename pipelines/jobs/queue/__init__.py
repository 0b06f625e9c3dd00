"""The queue: jobs, schedule, claims and living workers; DBOS on SQLite or PostgreSQL.

May import settings and files. Must not run jobs.
"""
