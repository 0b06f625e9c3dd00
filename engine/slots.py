"""Where a layout keeps each layer, and the weights that are found there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from .architectures import Norm
from .errors import CheckpointError
from .graph import FloatArray
from .modules import Module, Modules
from .recognition import Evidence
from .sidecar import Options
from .tensors import finite_float32

_EPSILON = 1e-5
"""PyTorch's default for instance and batch norm; no checkpoint stores it."""

_AFFINE = frozenset({"weight", "bias"})
_TRACKED = frozenset({"running_mean", "running_var"})


@dataclass(frozen=True, slots=True)
class Slot:
    """One convolution's canonical name and its place in the training code, with its norm's.

    A slot without a norm has both norm fields empty.
    """

    name: str
    convolution: str
    norm_name: str = ""
    norm: str = ""


def fits(slots: Iterable[Slot], modules: Modules) -> bool:
    """Whether these are exactly the convolutions of a generator, and norms lie only where due."""
    slots = tuple(slots)
    norms = {slot.norm for slot in slots if slot.norm}
    found = set(modules.norms)
    convolutions = {slot.convolution for slot in slots}
    return convolutions == set(modules.convolutions) and (not found or found == norms)


def recognise_norm(modules: Modules, evidence: Evidence, options: Options) -> Norm:
    """The kind of normalisation, from its parameters; asks which statistics were used if stored."""
    kinds = {frozenset(module.tensors) for module in modules.norms.values()}
    if len(kinds) > 1:
        raise CheckpointError("The generator mixes several kinds of normalisation.")
    parameters = kinds.pop() if kinds else frozenset[str]()
    per_patch: Norm = "instance_affine" if parameters >= _AFFINE else "instance"
    match parameters:
        case _ if parameters == frozenset():
            return _norm_without_parameters(evidence, options)
        case _ if parameters == _AFFINE:
            evidence.tell("norm", "instance norm with scale and shift", "weight and bias of norms")
            return per_patch
        case _ if parameters in (_TRACKED, _TRACKED | _AFFINE):
            return "stored" if _stored_statistics(evidence, options) else per_patch
        case _:
            raise CheckpointError(
                f"Normalisation layers hold only {', '.join(sorted(parameters))}; "
                "that is neither instance nor batch norm."
            )


def convolution_weights(
    slots: Iterable[Slot], modules: Modules, norm: Norm
) -> dict[str, FloatArray]:
    """All weights of the slots under canonical names."""
    weights: dict[str, FloatArray] = {}
    for slot in slots:
        module = modules.convolutions[slot.convolution]
        weights[f"{slot.name}.weight"] = module.read("weight")
        if module.has_bias:
            weights[f"{slot.name}.bias"] = module.read("bias")
        if slot.norm in modules.norms:
            weights.update(_norm_weights(slot.norm_name, modules.norms[slot.norm], norm))
    return weights


def common_bias(modules: Modules, slots: Iterable[Slot]) -> bool:
    """Whether these convolutions have a bias; raises CheckpointError unless they agree."""
    found = {modules.convolutions[slot.convolution].has_bias for slot in slots}
    if len(found) > 1:
        raise CheckpointError("Some convolutions have a bias where others of their kind have none.")
    return found.pop() if found else True


def _norm_without_parameters(evidence: Evidence, options: Options) -> Norm:
    if options.values.get("norm") == "none":
        evidence.tell("norm", "none", f"norm: none in {options.files[0]}")
        return "none"
    evidence.assume("norm", "instance norm of each patch", "the file holds no parameters of a norm")
    return "instance"


def _stored_statistics(evidence: Evidence, options: Options) -> bool:
    if evidence.choices.norm_statistics is None and (used := options.values.get("eval")):
        statistics = "stored" if used == "True" else "patch"
        evidence.tell("norm statistics", statistics, f"eval: {used} in the options of the test run")
        return statistics == "stored"
    answer = evidence.ask(
        "norm_statistics",
        ("patch", "stored"),
        "the file stores statistics of the training, but much test code never calls eval() and "
        "normalises each patch by its own; the wrong one shifts and scales the intensities",
    )
    return answer == "stored"


def _norm_weights(name: str, module: Module, norm: Norm) -> Iterator[tuple[str, FloatArray]]:
    scale, shift = f"{name}.scale", f"{name}.shift"
    if norm == "instance_affine":
        yield scale, module.read("weight")
        yield shift, module.read("bias")
    elif norm == "stored":
        mean = module.read("running_mean").astype(np.float64)
        variance = module.read("running_var").astype(np.float64)
        if (variance < 0).any():
            raise CheckpointError(f"{module.path}.running_var holds negative variances.")
        affine = module.tensors.keys() >= _AFFINE
        gain = (module.read("weight") if affine else 1.0) / np.sqrt(variance + _EPSILON)
        offset = module.read("bias") if affine else 0.0
        yield scale, finite_float32(gain, scale)
        yield shift, finite_float32(offset - mean * gain, shift)
