"""The network on the CPU: in ONNX and its runtime, in OpenVINO, and slab by slab over a volume.

May import the network. Must not know CUDA, nor scans; callers pass the available memory. What runs
only once (references, proofs, verification) takes ONNX Runtime, which opens a network ten times
faster than OpenVINO.
"""
