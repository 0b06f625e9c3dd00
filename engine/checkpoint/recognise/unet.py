"""The nested key naming of the U-Net generators: model.model.1.model.3.model ..."""

from ...errors import CheckpointError
from ...network.graph import times
from .evidence import BY_ONNX
from .layers import KeyMapping, NetworkTensors, common_bias, fits
from .match import NESTED_U_NET, Match, UNetShape

_FEWEST_LEVELS, _MOST_LEVELS = 2, 12


def match_unet(modules: NetworkTensors) -> Match | None:
    """The match of a nested U-Net, if the generator's layers are exactly those of one.

    Raises CheckpointError if only the shapes of its weights are those of none.
    """
    levels, odd = divmod(len(modules.convolutions), 2)
    if odd or not _FEWEST_LEVELS <= levels <= _MOST_LEVELS:
        return None
    slots = _slots(levels)
    return _matched(slots, modules) if fits(slots, modules) else None


def _matched(slots: tuple[KeyMapping, ...], modules: NetworkTensors) -> Match:
    outermost_up = slots[-1]
    first_shape = modules.convolutions[slots[0].convolution].shape
    shape = UNetShape(
        in_channels=first_shape[1],
        out_channels=modules.convolutions[outermost_up.convolution].shape[1],
        width=first_shape[0],
        levels=len(slots) // 2,
        inner_bias=common_bias(modules, slots[:-1]),
        stride=",".join(str(edge - 2) for edge in first_shape[2:]),
    )
    kernel = first_shape[2:]
    if not set(kernel) <= {3, 4}:
        raise CheckpointError(
            f"The U-Net has kernels of {times(kernel)}; only those of 4, or of 3 "
            f"along an axis that is not sampled, are read from checkpoints; {BY_ONNX}."
        )
    match = Match(NESTED_U_NET, slots, modules, shape)
    match.check_shapes()
    if any(modules.convolutions[slot.convolution].is_spectral for slot in slots):
        raise CheckpointError(f"This is a U-Net with spectral norm; {BY_ONNX}.")
    if not modules.convolutions[outermost_up.convolution].has_bias:
        raise CheckpointError(f"The U-Net's last layer has no bias; {BY_ONNX}.")
    return match


def _slots(levels: int) -> tuple[KeyMapping, ...]:
    downs: list[KeyMapping] = []
    ups: list[KeyMapping] = []
    path = "model.model"
    for level in range(levels):
        outermost, innermost = level == 0, level == levels - 1
        down, up = f"down{level}", f"up{level}"
        if outermost:
            downs.append(KeyMapping(down, f"{path}.0"))
            ups.append(KeyMapping(up, f"{path}.3"))
            path = f"{path}.1.model"
        elif innermost:
            downs.append(KeyMapping(down, f"{path}.1"))
            ups.append(KeyMapping(up, f"{path}.3", f"{up}.norm", f"{path}.4"))
        else:
            downs.append(KeyMapping(down, f"{path}.1", f"{down}.norm", f"{path}.2"))
            ups.append(KeyMapping(up, f"{path}.5", f"{up}.norm", f"{path}.6"))
            path = f"{path}.3.model"
    return (*downs, *reversed(ups))
