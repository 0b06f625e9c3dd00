"""A generator's tensors grouped by the layer that owns them, and where each layout keeps which
layer.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...errors import CheckpointError, listed, quoted
from ...network.architectures import Norm
from ...network.graph import FloatArray
from ..read.checkpoint import Options
from ..read.tensors import StoredTensor, finite_float32
from .networks import Tensors
from .recognition import Evidence

_SPECTRAL = {"original": "weight_orig", "0._u": "weight_u", "0._v": "weight_v"}
_PARAMETRIZATION = "parametrizations.weight."


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """One layer's tensors by their PyTorch names (weight, bias, running_mean ...).

    path: of the layer, without the tensor's name. tensors: by their names.
    """

    path: str
    tensors: Tensors = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight as stored."""
        stored = self.tensors.get("weight") or self.tensors["weight_orig"]
        return stored.shape

    @property
    def has_bias(self) -> bool:
        return "bias" in self.tensors

    @property
    def is_spectral(self) -> bool:
        return "weight_orig" in self.tensors

    def read(self, parameter: str) -> FloatArray:
        """One parameter as float32; a weight under spectral norm comes out normalised."""
        if parameter == "weight" and self.is_spectral:
            return self._normalised()
        return self.tensors[parameter].read(f"{self.path}.{parameter}")

    def _normalised(self) -> FloatArray:
        """weight_orig / sigma with sigma = u^T W v (Miyato et al. 2018), as PyTorch stores it."""
        if not {"weight_u", "weight_v"} <= self.tensors.keys():
            raise CheckpointError(f"{self.path} has spectral norm without its vectors u and v.")
        weight, left, right = (
            self.read(f"weight_{part}").astype(np.float64) for part in ("orig", "u", "v")
        )
        # A transposed convolution keeps its output channels on axis 1.
        rows = weight if weight.shape[0] == left.size else weight.swapaxes(0, 1)
        if rows.shape[0] != left.size or rows[0].size != right.size:
            raise CheckpointError(
                f"{self.path} has spectral norm of another shape than its weight."
            )
        sigma = left @ rows.reshape(left.size, -1) @ right
        if not sigma:
            raise CheckpointError(f"{self.path} has spectral norm of zero.")
        return finite_float32(weight / sigma, f"{self.path}.weight")


@dataclass(frozen=True, slots=True)
class NetworkTensors:
    """All layers of a generator that own tensors: convolutions, and normalisations.

    convolutions, norms: by the layer's path.
    """

    convolutions: Mapping[str, LayerTensors]
    norms: Mapping[str, LayerTensors]

    @classmethod
    def of(cls, tensors: Tensors, evidence: Evidence) -> "NetworkTensors":
        """Group tensors by layer; raises CheckpointError for parameters of unknown layers."""
        grouped: dict[str, dict[str, StoredTensor]] = {}
        for key, tensor in tensors.items():
            path, parameter = _owner(key)
            if parameter != "num_batches_tracked":
                grouped.setdefault(path, {})[parameter] = tensor
        convolutions: dict[str, LayerTensors] = {}
        norms: dict[str, LayerTensors] = {}
        for path, own in grouped.items():
            kind = convolutions if _is_convolution(path, own) else norms
            kind[path] = LayerTensors(path, own)
        if any(module.is_spectral for module in convolutions.values()):
            evidence.tell(
                "spectral norm", "folded into the weights", "weight_orig and vectors u, v"
            )
        return cls(convolutions, norms)


def _owner(key: str) -> tuple[str, str]:
    path, found, parametrization = key.partition(f".{_PARAMETRIZATION}")
    if found and parametrization in _SPECTRAL:
        return path, _SPECTRAL[parametrization]
    path, _, parameter = key.rpartition(".")
    return path, parameter


def _is_convolution(path: str, tensors: Tensors) -> bool:
    weight = tensors.get("weight") or tensors.get("weight_orig")
    if weight is not None and len(weight.shape) == 5:
        return True
    known = {"weight", "bias", "running_mean", "running_var"}
    if tensors.keys() <= known and all(len(t.shape) == 1 for t in tensors.values()):
        return False
    raise CheckpointError(
        f"Layer {quoted(path)} holds {listed(map(quoted, sorted(tensors)))}, which neither a "
        "convolution nor a normalisation of a 3-D CycleGAN generator has."
    )


_EPSILON = 1e-5
"""PyTorch's default for instance and batch norm; no checkpoint stores it."""

_AFFINE = frozenset({"weight", "bias"})
_TRACKED = frozenset({"running_mean", "running_var"})


@dataclass(frozen=True, slots=True)
class KeyMapping:
    """One convolution's canonical name and its place in the training code, with its norm's.

    A slot without a norm has both norm fields empty.

    name, norm_name: canonical. convolution, norm: keys of the training code.
    """

    name: str
    convolution: str
    norm_name: str = ""
    norm: str = ""


def fits(slots: Iterable[KeyMapping], modules: NetworkTensors) -> bool:
    """Whether these are exactly the convolutions of a generator, and norms lie only where due."""
    slots = tuple(slots)
    norms = {slot.norm for slot in slots if slot.norm}
    found = set(modules.norms)
    convolutions = {slot.convolution for slot in slots}
    return convolutions == set(modules.convolutions) and (not found or found == norms)


def recognise_norm(modules: NetworkTensors, evidence: Evidence, options: Options) -> Norm:
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
    slots: Iterable[KeyMapping], modules: NetworkTensors, norm: Norm
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


def common_bias(modules: NetworkTensors, slots: Iterable[KeyMapping]) -> bool:
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


def _norm_weights(name: str, module: LayerTensors, norm: Norm) -> Iterator[tuple[str, FloatArray]]:
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
