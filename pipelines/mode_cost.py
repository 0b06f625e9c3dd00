"""Cost of studies in one mode of inference, from memory plans and from measured speeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..engine.cpu.session import session_bytes
from ..engine.cpu.slabs import SlabPlan
from ..engine.cuda.user_cache import cache_folder
from ..engine.devices import choose_device, plan_device, plan_volume, with_half_the_memory
from ..engine.model.model_file import Model
from ..engine.network.layers import Triple, triple
from ..engine.options import Inference
from ..engine.whole_volume import VolumePlan
from ..io.volume import Study, Volume
from .cycle import host_bytes, plan_back, reverse_options
from .host.memory import require_memory
from .rates import (
    HostRates,
    NetworkRates,
    RateCache,
    StageConcurrency,
    VerifyRates,
    Work,
    wall_seconds,
)
from .run.networks import maps_budget, maps_memory
from .run.pipeline import concurrency_of
from .study.inference import window_grid
from .study.plan import StudyPlan
from .study.prepare import network_array
from .study.translator import StudyTranslator
from .study.verify import volume_again_bytes
from .translate import Job
from .whole_check import WholeCheck

if TYPE_CHECKING:
    from ..engine.cuda.patches.device_plan import DevicePlan
    from ..engine.patch_grid import PatchGrid

WholeVolume: TypeAlias = VolumePlan | SlabPlan
"""Plan of whole-volume inference: on a GPU, or on the CPU."""


@dataclass(frozen=True, slots=True)
class StudyCost:
    """Cost of a study in one mode of inference.

    host_bytes: peak host memory, models and networks included, in addition to the program itself.
    device_bytes: GPU memory while it is translated alone, the program included; None on the CPU and
    while unknown. work: estimated work; None if nothing of the kind was measured on this machine
    yet. again: patches to compute a second time, on the CPU; verifying: seconds of that, None if
    never measured. back: patches of the back-translation, if any. volume: plan of whole-volume
    inference, if used, and volume_back that of the back-translation; then the grids only show where
    borders would be. is_checked: whether the whole volume is computed, too, for a comparison.
    """

    host_bytes: int = 0
    device_bytes: int | None = None
    work: Work | None = None
    again: int = 0
    verifying: float | None = 0.0
    back: "PatchGrid | None" = None
    volume: WholeVolume | None = None
    volume_back: WholeVolume | None = None
    is_checked: bool = False

    @property
    def of_copy(self) -> "StudyCost":
        """Cost of a result that is only stored again, under another name."""
        return replace(self, work=self.work and replace(self.work, load=0.0, network=0.0))

    @property
    def patches_back(self) -> int:
        """Number of patches to translate back."""
        return self.inputs(self.back)

    def inputs(self, grid: "PatchGrid | None") -> int:
        """Return the number of the network's inputs for a grid: patches, or one volume."""
        if grid is None:
            return 0
        return 1 if self.volume else prod(map(len, grid.origins))


@dataclass(frozen=True, slots=True)
class ForeseenStudy:
    """Study that was read and planned in the mode of a job.

    study: with its files. volumes: its scans, of a series the last volume of each. plan, grid: of
    these. count: number of volumes. is_series: whether they are translated one by one.
    reading_bytes: host memory while they are read. again: patches to compute a second time, by
    mode.
    """

    study: Study
    volumes: Sequence[Volume]
    plan: StudyPlan
    grid: "PatchGrid"
    count: int
    is_series: bool
    reading_bytes: int
    again: dict[Inference, int]


def in_other_mode(job: Job) -> Job:
    """Return the job with the other mode of inference."""
    other: Inference = "volume" if job.options.inference == "patches" else "patches"
    return replace(job, options=replace(job.options, inference=other))


class ModeEstimator:
    """Estimator of the cost of a job's studies, from earlier batches and tactic searches."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._cache = RateCache(cache_folder())
        self._network = self._cache.get(NetworkRates, job.network_key)
        self._volumes: dict[tuple[str, Triple], WholeVolume] = {}
        self._network_bytes = _network_bytes(job)
        self._whole_check = WholeCheck(job.model, job.options, maps_memory)
        self._is_checked = False

    @property
    def inference(self) -> Inference:
        """Mode of the estimates."""
        return self._job.options.inference

    @cached_property
    def plans(self) -> "tuple[DevicePlan, ...]":
        """Memory plan of the network on each GPU; none for volumes, planned per study."""
        return _planned(self._job, self._job.model, self._job.options.opened_for)

    @cached_property
    def plans_back(self) -> "tuple[DevicePlan, ...]":
        """Memory plan of the reverse model's network on each GPU."""
        back = self._job.back
        return _planned(self._job, back, _patch_back(self._job, back)) if back else ()

    def cost(self, seen: ForeseenStudy) -> StudyCost:
        """Return the cost of a study.

        Raises MemoryError, PreparationError and EngineError if it would fail in this mode.
        """
        options, volumes = self._job.options, seen.volumes
        crop, window = seen.plan.crop, seen.plan.window
        translator = StudyTranslator(self._job.model, options)
        plan = translator.plan_volumes(volumes, crop=crop, window=window)
        back, peak = self._back_plan(volumes[0], plan)
        if seen.is_series:
            peak += plan.footprint.stored
        require_memory(peak + volume_again_bytes(plan, options.verify))
        volume, volume_back = self._volume_plans(plan, back)
        checked_bytes = self._checked_bytes(plan)
        peak += _in_memory(volume, volume_back) + self._again_bytes(plan) + checked_bytes
        cost = StudyCost(
            self._network_bytes + max(seen.reading_bytes, peak),
            _gpu_bytes_of_volumes(volume, volume_back)
            if volume
            else self._gpu_bytes(seen.grid, back),
            again=seen.again[self.inference],
            back=back,
            volume=volume,
            volume_back=volume_back,
            is_checked=checked_bytes > 0,
        )
        cost = replace(cost, verifying=self._verifying(cost, volumes[0].voxels.size))
        return replace(cost, work=self._work(cost, seen))

    def wall(self, costs: Sequence[StudyCost]) -> float | None:
        """Return the seconds of pending studies; None if not known for each, or if none is."""
        works = [cost.work for cost in costs if cost.work]
        if not costs or len(works) < len(costs):
            return None
        job = self._job
        count = len(job.devices)
        concurrency = concurrency_of(job.devices[0], count)
        last = self._cache.get(NetworkRates, job.network_key, job.opening_key)
        opening = last.opening if last else 0.0
        return wall_seconds(
            works,
            StageConcurrency(
                concurrency.readers * count, count, concurrency.writers * count, opening
            ),
        )

    def _volume_plans(
        self, plan: StudyPlan, back: "PatchGrid | None"
    ) -> tuple[WholeVolume | None, WholeVolume | None]:
        """Return the plans of whole-volume inference of a study, forward and back."""
        if plan.inference == "patches":
            return None, None
        there = self._volume(self._job.model, plan.layout.extents)
        if back is None or self._job.back is None:
            return there, None
        extents = triple(back.extents[back.axes.index(axis)] for axis in range(3))
        return there, self._volume(self._job.back, extents)

    def _volume(self, model: Model, extents: Triple) -> WholeVolume:
        """Return the plan for these extents, computed only once, as it opens the GPU."""
        key = model.sha256, extents
        if key not in self._volumes:
            job = self._job
            device = with_half_the_memory(job.devices[0]) if job.back else job.devices[0]
            self._volumes[key] = plan_volume(
                model.network, device, job.options.precision, extents, maps_budget(device)
            )
        return self._volumes[key]

    def _again_bytes(self, plan: StudyPlan) -> int:
        """Return the host bytes for a volume that the CPU computes a second time."""
        model = self._job.model
        own_bytes = volume_again_bytes(plan, self._job.options.verify)
        if not own_bytes:
            return 0
        extents = plan.layout.extents
        again = plan_volume(model.network, choose_device("cpu"), "fp32", extents, maps_memory)
        return own_bytes + again.host_bytes

    def _checked_bytes(self, plan: StudyPlan) -> int:
        """Return the host bytes for the whole volume of the first study, if that is compared."""
        if self._is_checked or not self._whole_check.is_due(plan):
            return 0
        self._is_checked = True
        return self._whole_check.host_bytes(plan)

    def _back_plan(self, volume: Volume, plan: StudyPlan) -> "tuple[PatchGrid | None, int]":
        """Return the grid of the back-translation, and the study's host bytes including it."""
        if self._job.back is None:
            return None, plan.footprint.peak
        back = plan_back(volume, self._job.back, self._job.options)
        view = back.orientation.oriented(volume.voxels)
        array = network_array(view, 1, back, np.empty)
        return window_grid(array, back.layout), host_bytes(volume, plan, back, self._job.options)

    def _gpu_bytes(self, grid: "PatchGrid", back: "PatchGrid | None") -> int | None:
        """Return the GPU bytes for a study alone, for all its networks; None if not known."""
        known = [plan.held([grid]) for plan in self.plans]
        largest = max((size for size in known if size is not None), default=None)
        if largest is None or back is None:
            return largest
        returning = [plan.held([back]) for plan in self.plans_back]
        most = max((size for size in returning if size is not None), default=None)
        return None if most is None else largest + most

    def _verifying(self, cost: StudyCost, voxels: int) -> float | None:
        """Return the seconds of recomputing parts on the CPU; None if never measured."""
        if not cost.again:
            return 0.0
        rates = self._cache.get(VerifyRates, self._job.verify_key)
        return rates and cost.again * (voxels if cost.volume else 1) * rates.tile

    def _work(self, cost: StudyCost, seen: ForeseenStudy) -> Work | None:
        voxels = seen.volumes[0].voxels.size
        host = self._cache.get(HostRates, *self._job.known_host_keys(seen.study))
        network = self._on_device(cost, seen, voxels)
        if host is None or network is None or cost.verifying is None:
            return None
        voxels *= seen.count
        return Work(voxels * host.load, network, voxels * host.store + cost.verifying)

    def _on_device(self, cost: StudyCost, seen: ForeseenStudy, voxels: int) -> float | None:
        """Return the seconds by the programs' timings, or else by the last batch of the kind."""
        inputs = self._job.options.passes * seen.count * cost.inputs(seen.grid)
        if cost.volume:
            forward = _seconds(cost.volume, inputs)
            back = _seconds(cost.volume_back, cost.patches_back) if cost.volume_back else 0.0
        else:
            voxels = 1
            forward = _program_seconds(self.plans, inputs)
            back = _program_seconds(self.plans_back, cost.patches_back) if cost.back else 0.0
        if forward is not None and back is not None:
            return forward + back
        return inputs * voxels * self._network.tile if self._network else None


def _patch_back(job: Job, back: Model) -> Triple | None:
    return reverse_options(job.options, back).opened_for


def _planned(job: Job, model: Model, patch: Triple | None) -> "tuple[DevicePlan, ...]":
    """Return the memory plan of a network on each GPU; none for volumes, planned per study."""
    if patch is None:
        return ()
    devices = map(with_half_the_memory, job.devices) if job.back else job.devices
    precision = job.options.precision
    plans = (plan_device(model.network, device, precision, patch) for device in devices)
    return tuple(plan for plan in plans if plan)


def _network_bytes(job: Job) -> int:
    """Return the host bytes of the models, and of their CPU networks with a patch of each.

    The memory of whole-volume inference is added to its study.
    """
    on_cpu = job.devices[0].kind != "cuda"
    opened = [(job.model, job.options.opened_for if on_cpu else None, on_cpu)]
    if job.back:
        opened.append((job.back, _patch_back(job, job.back) if on_cpu else None, on_cpu))
    if job.options.verify and job.options.opened_for:
        opened.append((job.model, job.options.opened_for, True))
    models = {model.sha256: model for model, _, _ in opened}.values()
    weights = (array.nbytes for model in models for array in model.network.weights.values())
    sessions = (session_bytes(model.network, patch) for model, patch, opens in opened if opens)
    return sum(weights) + sum(sessions)


def _gpu_bytes_of_volumes(*volumes: WholeVolume | None) -> int | None:
    """Return the GPU bytes for a study whose networks are all open at the same time."""
    sizes = [volume.device_bytes for volume in volumes if isinstance(volume, VolumePlan)]
    return sum(sizes) if sizes else None


def _in_memory(*volumes: WholeVolume | None) -> int:
    """Return the host bytes for feature maps: pinned ones are kept, others exist in turn."""
    pinned = [volume.host_bytes for volume in volumes if isinstance(volume, VolumePlan)]
    slabs = [volume.host_bytes for volume in volumes if isinstance(volume, SlabPlan)]
    return sum(pinned) + max(slabs, default=0)


def _seconds(volume: WholeVolume, passes: int) -> float | None:
    """Return the seconds of a volume by the GPU's plan; None if not known."""
    if isinstance(volume, VolumePlan) and volume.seconds is not None:
        return passes * volume.seconds
    return None


def _program_seconds(plans: "Sequence[DevicePlan]", patches: int) -> float | None:
    for plan in plans:
        if plan.program and (seconds := plan.program.seconds(patches)) is not None:
            return seconds
    return None
