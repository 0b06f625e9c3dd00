"""A generator's tensors grouped by layer, and the mapping of a layout's keys to canonical names."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...errors import CheckpointError, listed, quoted
from ...network.architectures import Groups, Norm
from ...network.layers import FloatArray
from ..torch_files import StoredTensor, finite_float32
from .evidence import BY_EXPORT

Tensors = Mapping[str, StoredTensor]

_PARAMETRIZATION = "parametrizations.weight."
_PARAMETRIZED = {
    "original": "weight_orig",
    "0._u": "weight_u",
    "0._v": "weight_v",
    "original0": "weight_g",
    "original1": "weight_v",
}
"""Names of spectral and weight norm's tensors by their names in today's parametrisations."""


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """The tensors of a layer by their PyTorch names (weight, bias, running_mean ...).

    path: of the layer, without the tensor's name. tensors: by their names.
    """

    path: str
    tensors: Tensors = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight as stored."""
        names = ("weight_v",) if self.has_weight_norm else ("weight", "weight_orig")
        return next(self.tensors[name].shape for name in names if name in self.tensors)

    @property
    def has_bias(self) -> bool:
        return "bias" in self.tensors

    @property
    def is_spectral(self) -> bool:
        return "weight_orig" in self.tensors

    @property
    def has_weight_norm(self) -> bool:
        return "weight_g" in self.tensors

    def read(self, parameter: str) -> FloatArray:
        """Return a parameter as float32; spectral and weight norm are folded into the weight."""
        if parameter == "weight" and self.is_spectral:
            return self._divided()
        if parameter == "weight" and self.has_weight_norm:
            return self._scaled()
        return self.tensors[parameter].read(f"{self.path}.{parameter}")

    def _divided(self) -> FloatArray:
        """Fold spectral norm: weight_orig / (u^T W v) (Miyato et al. 2018)."""
        if not {"weight_u", "weight_v"} <= self.tensors.keys():
            raise CheckpointError(f"{self.path} has spectral norm without its vectors u and v.")
        weight, left, right = (
            self.read(f"weight_{part}").astype(np.float64) for part in ("orig", "u", "v")
        )
        # A transposed convolution has its output channels on axis 1. If that is as long as
        # axis 0, the vectors decide, as W v is parallel to u.
        images = [
            rows.reshape(left.size, -1) @ right
            for rows in (weight, weight.swapaxes(0, 1))
            if rows.shape[0] == left.size and rows[0].size == right.size
        ]
        if not images:
            raise CheckpointError(
                f"{self.path} has spectral norm of another shape than its weight."
            )
        image = max(images, key=lambda image: abs(left @ image) / (np.linalg.norm(image) or 1))
        sigma = left @ image
        if not sigma:
            raise CheckpointError(f"{self.path} has spectral norm of zero.")
        return finite_float32(weight / sigma, f"{self.path}.weight")

    def _scaled(self) -> FloatArray:
        """Fold weight norm: g v / |v| (Salimans and Kingma 2016), |v| over axes where g is 1."""
        length, direction = (self.read(f"weight_{part}").astype(np.float64) for part in ("g", "v"))
        if not length.ndim:  # one length for the whole tensor
            length = length.reshape((1,) * direction.ndim)
        axes = tuple(axis for axis, extent in enumerate(length.shape) if extent == 1)
        norms = np.sqrt((direction**2).sum(axis=axes, keepdims=True))
        if length.ndim != direction.ndim or norms.shape != length.shape or not norms.all():
            raise CheckpointError(f"{self.path} has weight norm that does not fit its weight.")
        return finite_float32(direction * (length / norms), f"{self.path}.weight")


@dataclass(frozen=True, slots=True)
class NetworkTensors:
    """All layers of a generator that own tensors: convolutions, normalisations, fixed filters.

    convolutions, norms, filters: by the layer's path.
    """

    convolutions: Mapping[str, LayerTensors]
    norms: Mapping[str, LayerTensors]
    filters: Mapping[str, LayerTensors]

    @classmethod
    def of(cls, tensors: Tensors) -> "NetworkTensors":
        """Group tensors by layer; raises CheckpointError for parameters of unknown layers."""
        grouped: dict[str, dict[str, StoredTensor]] = {}
        for key, tensor in tensors.items():
            path, parameter = _owner(key)
            if parameter != "num_batches_tracked":
                grouped.setdefault(path, {})[parameter] = tensor
        convolutions: dict[str, LayerTensors] = {}
        norms: dict[str, LayerTensors] = {}
        filters: dict[str, LayerTensors] = {}
        for path, own in grouped.items():
            if own.keys() == {"filt"}:
                kind = filters
            else:
                kind = convolutions if _is_convolution(path, own) else norms
            kind[path] = LayerTensors(path, own)
        return cls(convolutions, norms, filters)

    @property
    def paths(self) -> frozenset[str]:
        """Paths of all layers."""
        return frozenset((*self.convolutions, *self.norms, *self.filters))

    @property
    def folded(self) -> list[str]:
        """Reparametrisations that are folded into the weights."""
        layers = list(self.convolutions.values())
        found = {
            "spectral norm": any(layer.is_spectral for layer in layers),
            "weight norm": any(layer.has_weight_norm for layer in layers),
        }
        return [name for name, is_there in found.items() if is_there]

    @property
    def norm_parameters(self) -> frozenset[str]:
        """Names of each norm's tensors; raises CheckpointError if they differ between norms."""
        kinds = {frozenset(layer.tensors) for layer in self.norms.values()}
        if len(kinds) > 1:
            raise CheckpointError(
                "The generator mixes several kinds of normalisation, or has activations with "
                f"weights; {BY_EXPORT}."
            )
        parameters = kinds.pop() if kinds else frozenset[str]()
        if parameters not in (frozenset(), AFFINE, TRACKED, TRACKED | AFFINE):
            path = next(path for path, one in self.norms.items() if one.tensors)
            raise CheckpointError(
                f"Layers such as {quoted(path)} have only {', '.join(sorted(parameters))}; that "
                f"is neither instance nor batch norm. If it is a PReLU, {BY_EXPORT}."
            )
        return parameters

    @property
    def elements(self) -> frozenset[str]:
        """Element types of the stored convolutions."""
        layers = self.convolutions.values()
        return frozenset(one.element for layer in layers for one in layer.tensors.values())

    def within(self, prefix: str) -> "NetworkTensors":
        """Return the layers whose paths start with a prefix."""

        def inside(layers: Mapping[str, LayerTensors]) -> dict[str, LayerTensors]:
            return {path: layer for path, layer in layers.items() if path.startswith(prefix)}

        return NetworkTensors(inside(self.convolutions), inside(self.norms), inside(self.filters))


AFFINE = frozenset({"weight", "bias"})
TRACKED = frozenset({"running_mean", "running_var"})


def _owner(key: str) -> tuple[str, str]:
    path, found, parametrization = key.partition(f".{_PARAMETRIZATION}")
    if found and parametrization in _PARAMETRIZED:
        return path, _PARAMETRIZED[parametrization]
    path, _, parameter = key.rpartition(".")
    return path, parameter


def _is_convolution(path: str, tensors: Tensors) -> bool:
    names = ("weight", "weight_orig", "weight_v")
    if any(name in tensors and len(tensors[name].shape) == 5 for name in names):
        return True
    if tensors.keys() <= AFFINE | TRACKED and all(len(t.shape) == 1 for t in tensors.values()):
        return False
    named = listed(quoted(f"{path}.{name}" if path else name) for name in sorted(tensors))
    raise CheckpointError(
        f"The generator contains {named}, which is part of no convolution or normalisation of a "
        "known 3D CycleGAN generator; without it the images would be wrong."
    )


@dataclass(frozen=True, slots=True)
class KeyMapping:
    """Keys of a convolution and its norm in the training code, and their canonical names.

    name, norm_name: canonical names. convolution, norm: keys of the training code. gain: factor of
    the weights. Without a norm, both norm fields are empty.
    """

    name: str
    convolution: str
    norm_name: str = ""
    norm: str = ""
    gain: float = 1.0


def fits(slots: Iterable[KeyMapping], modules: NetworkTensors, filters: Iterable[str] = ()) -> bool:
    """Return whether slots and filters are exactly a generator's layers, with all norms or none."""
    slots = tuple(slots)
    norms = {slot.norm for slot in slots if slot.norm}
    found = set(modules.norms)
    convolutions = {slot.convolution for slot in slots}
    return (
        convolutions == set(modules.convolutions)
        and (not found or found == norms)
        and set(filters) == set(modules.filters)
    )


def convolution_weights(
    slots: Iterable[KeyMapping], modules: NetworkTensors, norm: Norm, epsilon: float
) -> dict[str, FloatArray]:
    """Return all weights by canonical names; epsilon: of a norm with stored statistics."""
    weights: dict[str, FloatArray] = {}
    for slot in slots:
        module = modules.convolutions[slot.convolution]
        weight = module.read("weight")
        weights[f"{slot.name}.weight"] = (
            weight if slot.gain == 1 else weight * np.float32(slot.gain)
        )
        if module.has_bias:
            weights[f"{slot.name}.bias"] = module.read("bias")
        if slot.norm in modules.norms:
            layer = modules.norms[slot.norm]
            weights.update(_norm_weights(slot.norm_name, layer, norm, epsilon))
    return weights


def common_bias(modules: NetworkTensors, slots: Iterable[KeyMapping]) -> bool:
    """Return whether these convolutions have a bias; raises CheckpointError unless they agree."""
    found = {modules.convolutions[slot.convolution].has_bias for slot in slots}
    if len(found) > 1:
        raise CheckpointError("Some convolutions have a bias while others of their kind have none.")
    return found.pop() if found else True


def _norm_weights(
    name: str, layer: LayerTensors, norm: Norm, epsilon: float
) -> Iterator[tuple[str, FloatArray]]:
    scale, shift = f"{name}.scale", f"{name}.shift"
    if norm == "instance_affine" or (isinstance(norm, Groups) and norm.affine):
        yield scale, layer.read("weight")
        yield shift, layer.read("bias")
    elif norm == "stored":
        mean = layer.read("running_mean").astype(np.float64)
        variance = layer.read("running_var").astype(np.float64)
        if (variance < 0).any():
            raise CheckpointError(f"{layer.path}.running_var contains negative variances.")
        affine = layer.tensors.keys() >= AFFINE
        gain = (layer.read("weight") if affine else 1.0) / np.sqrt(variance + epsilon)
        offset = layer.read("bias") if affine else 0.0
        yield scale, finite_float32(gain, scale)
        yield shift, finite_float32(offset - mean * gain, shift)
