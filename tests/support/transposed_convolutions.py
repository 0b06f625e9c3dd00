"""Networks of one transposed convolution in ONNX, with its output by its definition."""

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, helper
from support.onnx_files import model, node

from cuda_cyclegan.engine.network.layers import FloatArray, Triple, triple

_CHANNELS = 4


class Along(NamedTuple):
    """One axis of a transposed convolution. voxels: of its input."""

    kernel: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    extra: int = 0
    voxels: int = 3

    @property
    def spread(self) -> int:
        """Outputs that some tap reaches."""
        return (self.voxels - 1) * self.stride + self.dilation * (self.kernel - 1) + 1

    @property
    def output(self) -> int:
        return self.spread - self.before - self.after + self.extra


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution between one that divides the patch and a border that restores it.

    is_apart: whether an activation comes before the border.
    """

    axes: tuple[Along, Along, Along]
    groups: int = 1
    is_apart: bool = False

    def along(self, field: str) -> list[int]:
        return [getattr(axis, field) for axis in self.axes]

    @property
    def patch(self) -> Triple:
        return triple(axis.voxels * axis.stride for axis in self.axes)

    @property
    def border(self) -> list[tuple[int, int]]:
        missing = (size - axis.output for size, axis in zip(self.patch, self.axes, strict=True))
        return [(more // 2, more - more // 2) for more in missing]

    def proto(self) -> ModelProto:
        operator = helper.make_node(
            "ConvTranspose",
            ["a", "w", "w.bias"],
            ["b"],
            strides=self.along("stride"),
            dilations=self.along("dilation"),
            pads=self.along("before") + self.along("after"),
            output_padding=self.along("extra"),
            group=self.groups,
        )
        nodes = [node("Conv", "x down", "a", strides=self.along("stride")), operator]
        nodes += [node("Tanh", "b", "c")] if self.is_apart else []
        before, after = zip(*self.border, strict=True)
        border = {"border": np.array([0, 0, *before, 0, 0, *after])}
        nodes += [node("Pad", f"{nodes[-1].output[0]} border", "y")]
        return model(nodes, self._weights() | border)

    def patch_values(self) -> FloatArray:
        """Noise, [1, 1, D, H, W]."""
        return np.random.default_rng(1).normal(size=(1, 1, *self.patch)).astype(np.float32)

    def right(self, torch: Any) -> FloatArray:
        """Output by PyTorch in float64, with the ends cut off the whole spread of the kernel."""
        double = {key: torch.tensor(it).double() for key, it in self._weights().items()}
        source = torch.tensor(self.patch_values()).double()
        source = torch.nn.functional.conv3d(source, double["down"], stride=self.along("stride"))
        spread = torch.nn.functional.conv_transpose3d(
            source,
            double["w"],
            stride=self.along("stride"),
            groups=self.groups,
            dilation=self.along("dilation"),
        )
        wider = _padded(torch, spread, [(0, axis.extra) for axis in self.axes])
        whole = _padded(torch, wider, [(-axis.before, -axis.after) for axis in self.axes])
        whole = whole + double["w.bias"].reshape(1, -1, 1, 1, 1)
        output = torch.tanh(whole) if self.is_apart else whole
        return _padded(torch, output, self.border).numpy()

    def _weights(self) -> dict[str, FloatArray]:
        random = np.random.default_rng(0)
        shapes = {
            "down": (_CHANNELS, 1, *self.along("stride")),
            "w": (_CHANNELS, 1, *self.along("kernel")),
            "w.bias": (self.groups,),
        }
        return {
            key: (random.normal(size=shape) / prod(shape[2:]) ** 0.5).astype(np.float32)
            for key, shape in shapes.items()
        }


def _padded(torch: Any, tensor: Any, ends: list[tuple[int, int]]) -> Any:
    return torch.nn.functional.pad(tensor, [one for end in reversed(ends) for one in end])


@st.composite
def _alongs(draw: st.DrawFn) -> Along:
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    dilation = draw(st.sampled_from([1, 2, 3, 5]))
    before, after = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    extra = draw(st.integers(0, max(stride, dilation) - 1))
    return Along(kernel, stride, dilation, before, after, extra, draw(st.integers(1, 5)))


def transposed_convolutions() -> st.SearchStrategy[Transposed]:
    """Any that ONNX and PyTorch define and that have an output."""
    axis = _alongs().filter(lambda axis: axis.output > 0)
    axes = st.tuples(axis, axis, axis)
    return st.builds(Transposed, axes, st.sampled_from([1, 2, 4]), st.booleans())


BEYOND_STRIDES = Transposed(
    (Along(1, 2, 3, extra=2), Along(2, 1, 3, 1, 1, extra=2), Along(3, 2, 1, 1, 1, 1)), groups=2
)
"""Output padding of a stride and more, past the last tap and within."""
