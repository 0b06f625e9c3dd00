"""A generator's tensors grouped by the layer that owns them, with spectral norm folded in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .errors import CheckpointError
from .graph import FloatArray
from .recognition import Evidence
from .tensors import StoredTensor, finite_float32
from .torch_objects import quoted
from .unwrap import Tensors

_SPECTRAL = {"original": "weight_orig", "0._u": "weight_u", "0._v": "weight_v"}
_PARAMETRIZATION = "parametrizations.weight."


@dataclass(frozen=True, slots=True)
class Module:
    """One layer's tensors by their PyTorch names (weight, bias, running_mean ...)."""

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
class Modules:
    """All layers of a generator that own tensors: convolutions, and normalisations."""

    convolutions: Mapping[str, Module]
    norms: Mapping[str, Module]

    @classmethod
    def of(cls, tensors: Tensors, evidence: Evidence) -> "Modules":
        """Group tensors by layer; raises CheckpointError for parameters of unknown layers."""
        grouped: dict[str, dict[str, StoredTensor]] = {}
        for key, tensor in tensors.items():
            path, parameter = _owner(key)
            if parameter != "num_batches_tracked":
                grouped.setdefault(path, {})[parameter] = tensor
        convolutions: dict[str, Module] = {}
        norms: dict[str, Module] = {}
        for path, own in grouped.items():
            kind = convolutions if _is_convolution(path, own) else norms
            kind[path] = Module(path, own)
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
        f"Layer {quoted(path)} holds {', '.join(sorted(map(quoted, tensors)))}, which neither a "
        "convolution nor a normalisation of a 3-D CycleGAN generator has."
    )
