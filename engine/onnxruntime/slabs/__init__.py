"""Whole-volume inference on the CPU: map by map, each computed in slabs along D.

May import the network and ONNX Runtime's sessions. Must not know scans; callers pass the available
memory.
"""
