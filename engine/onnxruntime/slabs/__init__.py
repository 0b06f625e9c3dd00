"""A volume through the network at once on the CPU: map by map, each made in slabs along D.

May import the network and ONNX Runtime's sessions. Must not know scans; how much memory there is,
is told from outside.
"""
