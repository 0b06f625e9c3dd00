"""The nested key naming of the U-Net generators: model.model.1.model.3.model ..."""

from ...errors import CheckpointError
from ...network.architectures import Norm, UNetSpec
from ..read.checkpoint import Options
from .layers import KeyMapping, NetworkTensors, common_bias, fits
from .recognition import Evidence

LAYOUT = "nested U-Net (model.model.1.model)"
_FEWEST_LEVELS, _MOST_LEVELS = 3, 12


def match_unet(modules: NetworkTensors) -> tuple[KeyMapping, ...] | None:
    """Slots of a nested U-Net, if the generator's layers are exactly those of one."""
    levels, odd = divmod(len(modules.convolutions), 2)
    if odd or not _FEWEST_LEVELS <= levels <= _MOST_LEVELS:
        return None
    slots = _slots(levels)
    return slots if fits(slots, modules) else None


def unet_spec(
    slots: tuple[KeyMapping, ...],
    modules: NetworkTensors,
    norm: Norm,
    evidence: Evidence,
    options: Options,
) -> UNetSpec:
    """The spec of a matched U-Net; asks for the order in which its joints concatenate."""
    if options.values.get("netG") == "unet_32":
        raise CheckpointError(
            f"The training options in {options.files[0]} name unet_32, whose convolutions do not "
            "pad; such U-Nets are not supported."
        )
    outermost_up = slots[-1]
    first_shape = modules.convolutions[slots[0].convolution].shape
    levels = len(slots) // 2
    spec = UNetSpec(
        in_channels=first_shape[1],
        out_channels=modules.convolutions[outermost_up.convolution].shape[1],
        width=first_shape[0],
        levels=levels,
        norm=norm,
        skip_first=_skip_first(evidence),
        inner_bias=common_bias(modules, slots[:-1]),
        end="none" if evidence.choose("tanh") is False else "tanh",
    )
    _check_shapes(slots, modules, spec)
    if not modules.convolutions[outermost_up.convolution].has_bias:
        raise CheckpointError("The U-Net's last layer has no bias; this variant is not supported.")
    _report(spec, evidence)
    return spec


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


def _skip_first(evidence: Evidence) -> bool:
    answer = evidence.ask(
        "concat",
        ("skip-first", "deeper-first"),
        "both halves of a joint have the same size; the wrong order mixes up fine and coarse "
        "features",
    )
    return answer == "skip-first"


def _check_shapes(slots: tuple[KeyMapping, ...], modules: NetworkTensors, spec: UNetSpec) -> None:
    for slot in slots:
        module = modules.convolutions[slot.convolution]
        level = int(slot.name.removeprefix("down").removeprefix("up"))
        inner = spec.level_width(level)
        if slot.name.startswith("down"):
            outer = spec.level_width(level - 1) if level else spec.in_channels
            expected = (inner, outer, 4, 4, 4)
        else:
            outer = spec.level_width(level - 1) if level else spec.out_channels
            expected = (inner if level == spec.levels - 1 else 2 * inner, outer, 4, 4, 4)
        if module.shape != expected:
            raise CheckpointError(
                f"Layer {slot.convolution} has weights of {'x'.join(map(str, module.shape))} where "
                f"a U-Net generator has {'x'.join(map(str, expected))}; this network is a variant "
                "that is not supported."
            )
        if module.is_spectral:
            raise CheckpointError("U-Nets with spectral norm are not supported.")


def _report(spec: UNetSpec, evidence: Evidence) -> None:
    channels = f"{spec.in_channels} in, {spec.out_channels} out"
    evidence.tell("channels", channels, "shapes of the first and last convolution")
    evidence.tell("width", spec.width, "shape of the first convolution")
    evidence.tell("levels", spec.levels, "depth of the nested names")
    evidence.assume(
        "convolution padding",
        "1 voxel of zeros",
        "it has no weights; unet_32 of EM_cycleGAN, "
        "which pads by none, has the same names and is not supported",
    )
    if evidence.choices.tanh is None:
        evidence.assume(
            "last activation", "tanh", "it has no weights; setting no-tanh leaves it out"
        )
