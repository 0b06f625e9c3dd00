"""An execution provider of ONNX Runtime that is not there: the CPU computes in its name."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cuda_cyclegan.engine import providers
from cuda_cyclegan.engine.cpu import session

_onnxruntime = session.onnxruntime
NAME = "StandInExecutionProvider"


@dataclass(frozen=True)
class StandIn:
    """Properties of the provider.

    factor: by which its voxels are off, in patches of wrong_from slices or more. starts: whether
    its library loads; else ONNX Runtime goes on with the CPU alone. share: of operators that it
    takes, 0 to 1. tells: whether this version of ONNX Runtime tells that. stops: in each run.
    """

    factor: float = 1.0
    wrong_from: int = 0
    starts: bool = True
    share: float = 1.0
    tells: bool = True
    stops: bool = False


class _Session:
    """A session on the CPU that says it is on the stand-in."""

    def __init__(self, real: Any, like: StandIn) -> None:
        self._real, self._like = real, like
        if like.tells:
            self.get_provider_graph_assignment_info = self._parts

    def get_providers(self) -> list[str]:
        return [NAME] * self._like.starts + self._real.get_providers()

    def _parts(self) -> list[Any]:
        parts = self._real.get_provider_graph_assignment_info()
        taken = round(self._like.share * len(parts))
        return [_Part(part, at < taken) for at, part in enumerate(parts)]

    def run(self, names: Any, inputs: Any) -> Any:
        if self._like.stops:
            raise RuntimeError("the device\n  was removed")
        [output] = self._real.run(names, inputs)
        is_wrong = output.shape[2] >= self._like.wrong_from
        return [output * np.float32(self._like.factor) if is_wrong else output]


class _Part:
    def __init__(self, real: Any, is_taken: bool) -> None:
        self.ep_name = NAME if is_taken else real.ep_name
        self.get_nodes = real.get_nodes


class _Runtime:
    def __init__(self, like: StandIn) -> None:
        self._like = like

    def __getattr__(self, name: str) -> Any:
        return getattr(_onnxruntime(), name)

    def get_available_providers(self) -> list[str]:
        return [NAME, *_onnxruntime().get_available_providers()]

    def InferenceSession(self, model: bytes, options: Any, **how: Any) -> Any:  # noqa: N802
        if how["providers"][0] != NAME:
            return _onnxruntime().InferenceSession(model, options, **how)
        how["providers"], how["provider_options"] = ["CPUExecutionProvider"], [{}]
        return _Session(_onnxruntime().InferenceSession(model, options, **how), self._like)


def install(monkeypatch: pytest.MonkeyPatch, like: StandIn) -> None:
    """Have ONNX Runtime offer the provider StandIn in this process."""
    for module in (providers, session):
        monkeypatch.setattr(module, "onnxruntime", lambda: _Runtime(like))
