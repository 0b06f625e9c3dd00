"""A stand-in for a GPU whose memory is host memory; README.md explains it."""
