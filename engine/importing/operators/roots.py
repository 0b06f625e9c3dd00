"""Roots and inverses of tensors that are above zero in every patch.

A root is its tensor times the inverse of the root, by which a quotient multiplies.
"""

from ...network.layers import Inverse, Multiply
from .graph_builder import Builder, GraphTensor, RootTensor
from .operator_graph import Operator

_LEAST_DIVISOR, LEAST_ROOT = 2e-5, 1e-9
"""Bounds of a divisor, and of what a root is taken of, whose inverses are numbers in fp16."""
_PROVE = (
    "which is not supported; write the generator so that a constant is added to what is never "
    "negative"
)


def rooted(builder: Builder, operator: Operator, source: GraphTensor) -> GraphTensor:
    """Add the root of a tensor that is never negative; below LEAST_ROOT it is a line to zero."""
    low = builder.lowest(source)
    if low < 0:
        raise operator.refusal(
            "is not part of a norm, and takes the root of a tensor that may be negative, which is "
            "not supported; it takes roots of sums of squares"
        )
    inverse = _inverse(builder, operator, source, max(low, LEAST_ROOT), root=True)
    output = builder.add(operator, Multiply(), source, inverse)
    builder.roots[output.node] = RootTensor(source, low)
    return output


def kept_above(builder: Builder, source: GraphTensor, output: GraphTensor, low: float) -> None:
    """Remember that a tensor is a root that was kept above a number, as PyTorch's normalize is."""
    if low > 0 and (root := builder.roots.get(source.node)):
        least = max(root.low, low * low, LEAST_ROOT)
        builder.roots[output.node] = RootTensor(root.of, least)


def inverted(builder: Builder, operator: Operator, value: GraphTensor) -> GraphTensor:
    """Add the inverse of a tensor that is above zero in every patch, or of such a root."""
    root = builder.roots.get(value.node)
    of, low = (root.of, root.low) if root else (value, builder.lowest(value))
    least = LEAST_ROOT if root else _LEAST_DIVISOR
    if low <= 0:
        raise operator.refusal(f"divides by a tensor that may be zero, {_PROVE}")
    if low < least * (1 - _ROUNDING):
        raise operator.refusal(
            f"divides by {'the root of ' if root else ''}a tensor that may be as low as {low:.3g}, "
            f"but no lower than {least:g} is supported; add a larger constant to it"
        )
    return _inverse(builder, operator, of, low, root=root is not None)


_ROUNDING = 1e-6
"""Relative error of a bound, which the file states in single precision."""


def _inverse(
    builder: Builder, operator: Operator, of: GraphTensor, low: float, *, root: bool
) -> GraphTensor:
    least = float(f"{0.99 * low:.9g}")  # which no rounding reaches
    return builder.add(operator, Inverse(least, root=root), of)
