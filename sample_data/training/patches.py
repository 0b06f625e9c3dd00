"""Random patches of the sample scan and of the T2-like volume, and how the two are kept apart."""

from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

HERE = Path(__file__).parent
SCAN = HERE.parent / "scans" / "icbm152_2009_t1_2mm.nii.gz"
T2_LIKE = HERE / "t2_like.npz"

TOP_PERCENTILE = 99.9
"""The scan's own percentiles 0 and 99.9 become -1 and 1."""

HELD_OUT_FROM = 66
"""Voxel rows j >= 66, the front 29 % of the brain, are never seen in training."""


@dataclass(frozen=True)
class Augmentation:
    """Limits of the random changes; lengths in voxels, intensities on the scale [0, 1]."""

    degrees: float = 15.0
    scale: float = 0.1
    elastic: float = 1.5
    bias: float = 0.05
    noise: float = 0.005


CHANGES = Augmentation()


def load() -> tuple[Tensor, Tensor]:
    """The T1 scan and the T2-like volume, both [1, 1, i, j, k] on the scale [0, 1]."""
    scan = np.asarray(nib.Nifti1Image.from_filename(SCAN).dataobj, np.float32)
    t1 = np.clip(scan / np.percentile(scan, TOP_PERCENTILE), 0, 1)
    with np.load(T2_LIKE) as arrays:
        t2 = arrays["t2_like"].astype(np.float32) / 255
    return torch.from_numpy(t1)[None, None], torch.from_numpy(t2)[None, None]


def seen(volume: Tensor) -> Tensor:
    """The part of a volume that training may see."""
    return volume[:, :, :, :HELD_OUT_FROM]


class Sampler:
    """Draws patches [N, 1, edge, edge, edge]; the seed decides all."""

    def __init__(self, edge: int, batch: int, seed: int, device: torch.device) -> None:
        self._edge, self._batch, self._device = edge, batch, device
        self._random = torch.Generator().manual_seed(seed)
        self._fields = torch.Generator(device).manual_seed(seed)

    def draw(self, volume: Tensor, changes: Augmentation) -> Tensor:
        """Patches of `volume`, half of them deformed, on the scale [-1, 1].

        The other half keeps the volume's own grid: deforming blurs, and scans are not blurred.
        """
        points = self.points(volume.shape[2:], changes, deformed=self._uniform() < 0.5)
        return 2 * self.disturb(self.cut(volume, points), changes) - 1

    def points(
        self, shape: torch.Size, changes: Augmentation, *, deformed: bool = True, first_j: int = 0
    ) -> Tensor:
        """Return the points where patches sample a volume of this shape: voxel coordinates [N, d,
        h, w, 3].

        Centres lie at least a third of an edge inside the volume, and from row `first_j` on. If
        not `deformed`, all coordinates are whole numbers.
        """
        margin = self._edge / 3
        low = torch.tensor([margin, max(margin, first_j), margin])
        high = torch.tensor([edge - 1 - margin for edge in shape])
        centres = low + self._uniform(self._batch, 3) * (high - low)
        axis = torch.arange(self._edge, device=self._device) - (self._edge - 1) / 2
        box = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1)
        if deformed:
            points = torch.einsum("dhwc,nbc->ndhwb", box, self._affine(changes).to(self._device))
            points += self._smooth(3, 4).movedim(1, -1) * changes.elastic
        else:
            centres = centres.floor() + 0.5
            mirror = torch.where(self._uniform(self._batch) < 0.5, -1.0, 1.0)
            points = box * torch.stack([mirror, mirror**2, mirror**2], -1)[:, None, None, None].to(
                self._device
            )
        return points + centres[:, None, None, None].to(self._device)

    def cut(self, volume: Tensor, points: Tensor) -> Tensor:
        """Trilinear samples at `points`; zero outside the volume."""
        size = torch.tensor(volume.shape[2:], device=self._device)
        grid = (2 * points / (size - 1) - 1).flip(-1)
        volume = volume.expand(len(points), -1, -1, -1, -1)
        return functional.grid_sample(volume, grid, align_corners=True)

    def disturb(self, patches: Tensor, changes: Augmentation) -> Tensor:
        """A slow bias field multiplies, noise adds; air stays clean."""
        bias = 1 + changes.bias * self._smooth(1, 3)
        noise = torch.randn(patches.shape, generator=self._fields, device=self._device)
        return (patches * bias + changes.noise * noise * (patches > 0)).clamp(0, 1)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._random)

    def _affine(self, changes: Augmentation) -> Tensor:
        """Rotation about three axes, scale and a left-right flip in half the cases: [N, 3, 3]."""
        angles = (2 * self._uniform(self._batch, 3) - 1) * np.deg2rad(changes.degrees)
        twist = torch.zeros(self._batch, 3, 3)
        for row, column, axis in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            twist[:, row, column], twist[:, column, row] = -angles[:, axis], angles[:, axis]
        scale = 1 + (2 * self._uniform(self._batch, 3) - 1) * changes.scale
        scale[:, 0] *= torch.where(self._uniform(self._batch) < 0.5, -1.0, 1.0)
        return torch.linalg.matrix_exp(twist) * scale[:, None]

    def _smooth(self, channels: int, knots: int) -> Tensor:
        """A random field [N, channels, edge, edge, edge] through normal values at knots**3."""
        shape = self._batch, channels, knots, knots, knots
        coarse = torch.randn(shape, generator=self._fields, device=self._device)
        size = (self._edge,) * 3
        return functional.interpolate(coarse, size, mode="trilinear", align_corners=True)
