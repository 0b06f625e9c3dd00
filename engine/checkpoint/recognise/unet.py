"""The nested key naming of the U-Net generators: model.model.1.model.3.model ..."""

from ...errors import CheckpointError
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
    _check_shapes(slots, modules, shape, first_shape[2:])
    if not modules.convolutions[outermost_up.convolution].has_bias:
        raise CheckpointError(f"The U-Net's last layer has no bias; {BY_ONNX}.")
    return Match(NESTED_U_NET, slots, modules, shape)


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


def _check_shapes(
    slots: tuple[KeyMapping, ...],
    modules: NetworkTensors,
    unet: UNetShape,
    kernel: tuple[int, ...],
) -> None:
    if not set(kernel) <= {3, 4}:
        raise CheckpointError(
            f"The U-Net has kernels of {'x'.join(map(str, kernel))}; only those of 4, or of 3 "
            f"along an axis that is not sampled, are read from checkpoints; {BY_ONNX}."
        )
    for slot in slots:
        module = modules.convolutions[slot.convolution]
        level = int(slot.name.removeprefix("down").removeprefix("up"))
        inner = _width(unet, level)
        if slot.name.startswith("down"):
            outer = _width(unet, level - 1) if level else unet.in_channels
            channels = inner, outer
        else:
            outer = _width(unet, level - 1) if level else unet.out_channels
            channels = (inner if level == unet.levels - 1 else 2 * inner), outer
        expected = (*channels, *kernel)
        if module.shape != expected:
            raise CheckpointError(
                f"Layer {slot.convolution} has weights of {'x'.join(map(str, module.shape))} where "
                f"a U-Net generator has {'x'.join(map(str, expected))}; "
                f"{BY_ONNX}."
            )
        if module.is_spectral:
            raise CheckpointError(f"This is a U-Net with spectral norm; {BY_ONNX}.")


def _width(unet: UNetShape, level: int) -> int:
    return unet.width * min(2**level, 8)
