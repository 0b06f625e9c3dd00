"""Roots and inverses of tensors that are above zero in every patch.

A root is its tensor times the inverse of the root, by which a quotient multiplies.
"""

from dataclasses import replace

from ...network.layers import Inverse, Multiply
from .graph_builder import Builder, Divisor, GraphTensor
from .operator_graph import Operator

_LEAST_DIVISOR, LEAST_ROOT = 2e-5, 1e-9
"""Bounds of a divisor, and of what a root is taken of, whose inverses are numbers in fp16."""
_PROVE = (
    "which is not supported; write the generator so that a constant is added to what is never "
    "negative"
)


def rooted(
    builder: Builder, operator: Operator, source: GraphTensor, *, norm_of: str = ""
) -> GraphTensor:
    """Add the root of a tensor that is never negative; below LEAST_ROOT it is a line to zero.

    norm_of: node whose channels it is the norm of.
    """
    low = builder.lowest(source)
    if low < 0:
        raise operator.refusal(
            "is not part of a norm, and takes the root of a tensor that may be negative, which is "
            "not supported; it takes roots of sums of squares"
        )
    inverse = _inverse(builder, operator, source, max(low, LEAST_ROOT), is_root=True)
    output = builder.add(operator, Multiply(), source, inverse)
    builder.divisors[output.node] = Divisor(source, low, is_root=True, norm_of=norm_of)
    return output


def kept_above(builder: Builder, source: GraphTensor, output: GraphTensor, low: float) -> None:
    """Remember that a tensor is a root or a norm that was kept above a number."""
    if low > 0 and (divisor := builder.divisors.get(source.node)):
        least = max(divisor.low, low * low if divisor.is_root else low)
        builder.divisors[output.node] = replace(divisor, low=least)


def inverted(
    builder: Builder, operator: Operator, value: GraphTensor, dividend: str = ""
) -> GraphTensor:
    """Add the inverse of a tensor that is above zero in every patch.

    dividend: node that it will multiply. Divided by its own norm, a vector may be shorter than the
    limit: it is divided by the limit then, and stays shorter than 1.
    """
    plain = Divisor(value, builder.lowest(value))
    divisor = builder.divisors.get(value.node, plain)
    low, least = divisor.low, LEAST_ROOT if divisor.is_root else _LEAST_DIVISOR
    if low <= 0:
        raise operator.refusal(f"divides by a tensor that may be zero, {_PROVE}")
    if low < least * (1 - _ROUNDING) and (not dividend or dividend != divisor.norm_of):
        what = "the root of " if divisor.is_root else ""
        raise operator.refusal(
            f"divides by {what}a tensor that may be as low as {low:.3g}, but no lower than "
            f"{least:g} is supported; add a larger constant to it"
        )
    low = max(low, least)
    return _inverse(builder, operator, divisor.of, low, is_root=divisor.is_root)


_ROUNDING = 1e-6
"""Relative error of a bound, which the file states in single precision."""


def _inverse(
    builder: Builder, operator: Operator, of: GraphTensor, low: float, *, is_root: bool
) -> GraphTensor:
    least = float(f"{0.99 * low:.9g}")  # which no rounding reaches
    return builder.add(operator, Inverse(least, root=is_root), of)
