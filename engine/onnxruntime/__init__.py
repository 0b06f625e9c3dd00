"""The network in ONNX Runtime, on the CPU or another of its execution providers: conversion to
ONNX, and the session that runs it.

May import the network. Must not know CUDA.
"""
