"""The arithmetic of a network."""

from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["fp16", "bf16", "tf32", "fp32"]
"""How numbers are stored and multiplied; sums are always fp32. tf32: fp32 with a short mantissa."""
