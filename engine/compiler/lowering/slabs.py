"""Slabs through which an outermost layer goes, so that what lies between its steps stays small."""

from collections.abc import Iterator

from ..tensors import Region


def slabs(
    batch: int, depth: int, plane_bytes: int, border_bytes: int, limit: int
) -> Iterator[tuple[Region, int]]:
    """Regions that cover a batch, and the planes of each, within `limit` bytes where possible.

    plane_bytes: of one plane of one patch; border_bytes: of what each slab holds besides.
    """
    if batch * (depth * plane_bytes + border_bytes) <= limit:
        yield Region(0, batch), depth
        return
    planes = max(1, min(depth, (limit - border_bytes) // plane_bytes))
    # Slabs of one size share one convolution plan; an uneven rest is the smaller evil for primes.
    planes = next((p for p in range(planes, planes // 2, -1) if depth % p == 0), planes)
    for patch in range(batch):
        for first in range(0, depth, planes):
            yield Region(patch, 1, first), min(planes, depth - first)
