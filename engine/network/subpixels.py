"""A transposed convolution that doubles its input, seen from the 8 voxels of each cell it makes."""

from itertools import product

from .layers import ConvTranspose3d


def subpixel_reach(kernel: int, padding: int) -> tuple[int, int]:
    """First and last input voxel, from the output's own, that a stride-2 transposed kernel reads.

    Output 2 i + r takes tap t from input i + (r + padding - t) / 2.
    """
    offsets = [
        (parity + padding - tap) // 2
        for parity, tap in product(range(2), range(kernel))
        if (parity + padding - tap) % 2 == 0
    ]
    return min(offsets), max(offsets)


def can_be_subpixels(conv: ConvTranspose3d) -> bool:
    """Whether a transposed convolution doubles its input in a way that sub-pixels can follow."""
    if conv.stride != (2, 2, 2) or conv.dilation != (1, 1, 1) or conv.groups > 1:
        return False
    sizes = zip(conv.kernel, conv.padding, conv.output_padding, strict=True)
    return all(kernel - 2 * padding + extra == 2 for kernel, padding, extra in sizes) and all(
        first <= 0 <= last for first, last in reach_of(conv)
    )


def reach_of(conv: ConvTranspose3d) -> list[tuple[int, int]]:
    """Along each axis the first and last input voxel that such a convolution reads."""
    sizes = zip(conv.kernel, conv.padding, strict=True)
    return [subpixel_reach(kernel, padding) for kernel, padding in sizes]
