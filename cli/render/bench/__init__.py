"""The figures of `bench` as text, JSON and plots.

May import the records of measurements. Must not measure.
"""
