"""The queue's tables: submit, claim, end and hand back; DBOS on SQLite or PostgreSQL.

May import the job's own record. Must not run jobs.
"""
