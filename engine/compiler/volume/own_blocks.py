"""Maps of which each run of a pass reads its own blocks alone.

Such a map in host memory is copied to the card ahead of the run, while another one is computed; and
what the run makes of it may be written over it. The run's own blocks are copied, too, of a map that
a pass over voxels reads a little around them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ...network.layers import Triple
from ..steps import ConvolveByPlanes, Pointwise, Statistics, Step
from ..tensors import Tensor, TensorView
from .passes import Pass, ReadsBlocks, sees_neighbours


def reading_own_blocks(
    passes: Sequence[Pass], maps: Mapping[str, Tensor], names: Collection[str]
) -> tuple[Pass, ...]:
    """The passes, which read some maps by their own blocks where these hold what is around them.

    names: of the maps. The sum before a residual block is one of them: its blocks are the bordered
    operands of a convolution, and those of the sum behind it are bordered alike.
    """
    makers: dict[str, list[Step]] = {}
    for one in passes:
        for step in one.steps:
            for name in step.flow.written_names & maps.keys() & set(names):
                makers.setdefault(name, []).append(step)

    def own(step: Step) -> Step:
        if not isinstance(step, Pointwise) or step.residual is None:
            return step
        tensor = step.residual.tensor
        match makers.get(tensor.name):
            case [Pointwise() as maker] if _holds_all(maker, step, tensor):
                whole = TensorView(tensor, tensor.extents)
                return replace(step, residual=whole, residual_around=maker.origin)
            case _:
                return step

    def reading(one: Pass) -> Pass:
        return replace(one, steps=tuple(own(step) for step in one.steps))

    return tuple(one if one.block is not None else reading(one) for one in passes)


def _holds_all(maker: Pointwise, reader: Pointwise, tensor: Tensor) -> bool:
    """Whether blocks of a tensor hold, as they are made, all that their reader sees around its own.

    Past the volume it sees what lies as far within it.
    """
    is_whole = maker.target == tensor and maker.extents == reader.extents
    if not is_whole or reader.sampling is not None or maker.shuffles:
        return False
    axes = zip(
        *(maker.origin, maker.target_extents),
        *(reader.origin, reader.target_extents, reader.extents),
        strict=True,
    )
    return all(
        first <= origin and origin + size <= first + held and origin + size - extent <= -first
        for first, held, origin, size, extent in axes
    )


def read_by_own_blocks(one: Pass, names: Collection[str]) -> Iterator[str]:
    """Those of some maps, kept by the grid of a pass, of which its runs read their own blocks."""
    read = {name for step in one.steps for name in step.flow.read_names} & set(names)
    for name in sorted(read - one.made):
        if all(_reads_own_blocks(step, name) for step in one.steps):
            yield name


def read_around_own_blocks(one: Pass, names: Collection[str]) -> Iterator[str]:
    """Those of which passes over voxels read their own blocks, and a little of those around."""
    alone = set(read_by_own_blocks(one, names))
    for name in sorted(set(names) - one.made - alone):
        readers = [step for step in one.steps if name in step.flow.read_names]
        if readers and all(isinstance(step, Pointwise) for step in readers):
            yield name


def _reads_own_blocks(step: Step, name: str) -> bool:
    if isinstance(step, Statistics):
        return name not in step.flow.read_names  # all blocks are measured as one
    if not isinstance(step, ReadsBlocks) or not sees_neighbours(replace(step, around=None)):
        return True
    seen = (around for view, around in _views(step) if view.tensor.name == name)
    return all(around is not None for around in seen)


def _views(step: ReadsBlocks) -> Iterator[tuple[TensorView, Triple | None]]:
    """What a step reads, with the first voxel around its block if that is what the tensor holds."""
    if isinstance(step, ConvolveByPlanes):
        yield from ((part.source, step.around) for part in step.parts)
        return
    yield step.source, step.around
    if isinstance(step, Pointwise) and step.residual is not None:
        yield step.residual, step.residual_around
