"""Batches of patches on the CPU, by OpenVINO.

May import the network and its ONNX form. Must not know CUDA, nor compute what runs only once
(references, proofs, verification): ONNX Runtime opens a network ten times faster.
"""
