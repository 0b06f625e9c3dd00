"""The job queue: submission, arrivals and summaries of durable jobs.

May import execution. Must not be imported by it.
"""
