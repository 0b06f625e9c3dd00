"""The network on the CPU: conversion to ONNX, and the session that runs it.

May import the network. Must not know CUDA.
"""
