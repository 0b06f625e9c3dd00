"""What a running batch tells, and what listens: pace, timeline, trace, rates kept for the next
run.

May import report. Must not print, nor steer what it watches.
"""
