"""Difference of a result by patches from its whole volume, measured once per model and patches.

Norms that take statistics of each patch make the extents of patches part of the function. Where
nobody has proved these extents, the first study that several patches cover is also computed as a
whole volume, in fp32 on the CPU, and its row gets a note with the difference in the body. The
result itself does not change.
"""

import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from time import perf_counter

import numpy as np

from ..engine.cuda.user_cache import cache_folder
from ..engine.errors import EngineError
from ..engine.model.model_file import Model
from ..engine.network.graph_analysis import sees_whole_patch
from ..engine.network.layers import FloatArray
from ..engine.scaling import Stored
from .decisions import pipeline_state
from .rates import RateCache, ShownNote
from .settings import ResolvedOptions
from .study.plan import INTENSITY_BYTES, StudyPlan
from .study.scan_limits import smaller_than_trained
from .study.statistics import level_of
from .study.translator import InferredStudy

_LIMIT = 60.0
"""Seconds that the whole volume may take, or as long as the patches took if that is longer."""

_VECTORS = 4
"""Arrays of one channel that the comparison needs beside the whole volume."""


class _NotMeasuredError(Exception):
    """Raised where a whole volume cannot be computed; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _Difference:
    """Difference in the body of the channel that differs most.

    mean: mean absolute difference, in the unit of the result. share: root mean square, as a share
    of the standard deviation of the whole volume's values.
    """

    mean: float
    share: float


class WholeCheck:
    """Comparison of a first study by patches with its whole volume; one thread at a time compares.

    model, options: of the studies. memory: returns the bytes of host memory that may be used for
    it.
    """

    def __init__(self, model: Model, options: ResolvedOptions, memory: Callable[[], int]) -> None:
        self._model, self._options, self._memory = model, options, memory
        self._cache, self._turn = RateCache(cache_folder()), threading.Lock()
        self._is_done = False

    def is_due(self, plan: StudyPlan) -> bool:
        """Return whether a study with this plan should be compared."""
        if self._is_done or not self._applies or plan.inference == "volume" or plan.patches < 2:
            return False
        self._is_done = self._cache.get(ShownNote, self._key) is not None
        return not self._is_done

    def host_bytes(self, plan: StudyPlan) -> int:
        """Return the host bytes that the comparison of a study needs; 0 if it cannot be done."""
        try:
            return self._needed(plan, self._memory())
        except (_NotMeasuredError, EngineError):
            return 0

    def note(
        self, inferred: InferredStudy, patch_seconds: float, go_on: Callable[[], None]
    ) -> str | None:
        """Return a note with the difference, or with the reason why it was not measured; None if
        the study is not to be compared. It must not be finished yet.

        patch_seconds: time of its patches. go_on: called now and then; an exception that it raises
        ends the comparison, which is due again then.
        """
        if not self._turn.acquire(blocking=False):
            return None
        try:
            if not self.is_due(inferred.study.prepared.plan):
                return None
            text = self._compared(inferred, max(_LIMIT, patch_seconds), go_on)
            self._cache.put({self._key: ShownNote(text)})
            self._is_done = True
            return text
        finally:
            self._turn.release()

    @cached_property
    def _applies(self) -> bool:
        model, options = self._model, self._options
        if smaller_than_trained(model, options):
            return True
        is_chosen = model.card.inference is not None
        is_open = not is_chosen and pipeline_state(model, options) != "proved"
        return is_open and sees_whole_patch(model.network.graph)

    @property
    def _key(self) -> str:
        options = self._options
        patches = f"{options.patch}, {options.overlap}, {options.blend}"
        return f"{platform.node()}, whole volume, {patches}, {self._model.sha256}"

    def _needed(self, plan: StudyPlan, memory: int) -> int:
        """Return the host bytes for a whole volume without temporary files.

        Raises _NotMeasuredError, and EngineError for an impossible volume.
        """
        from ..engine.cpu.slabs import plan_slabs  # late, as few studies are compared

        extents = plan.layout.extents
        own = INTENSITY_BYTES * prod(extents) * (plan.channels + _VECTORS)
        slabs = plan_slabs(self._model.network.graph, extents, max(memory - own, 0))
        if slabs.file_bytes:
            raise _NotMeasuredError("its feature maps do not fit into the free memory")
        return own + slabs.host_bytes

    def _compared(self, inferred: InferredStudy, limit: float, go_on: Callable[[], None]) -> str:
        begin = perf_counter()

        def on_share(_share: float) -> None:
            go_on()
            if perf_counter() - begin > limit:
                raise _NotMeasuredError(f"it takes more than {limit:.0f} s on the CPU")

        try:
            found = self._measured(inferred, on_share)
        except (_NotMeasuredError, EngineError) as error:
            return (
                f"the difference from the whole volume's result was not measured: {error}; "
                "setting compare-inference of model calibrate measures it"
            )
        return (
            "in the body, patches give a result that differs from the whole volume's by "
            f"{found.mean:.3g} on average, and by {found.share:.1%} of the standard deviation; "
            f"comparing took {perf_counter() - begin:.2g} s, once for this model and these patches"
        )

    def _measured(self, inferred: InferredStudy, on_share: Callable[[float], None]) -> _Difference:
        from ..engine.cpu.slab_generator import open_cpu_volume_generator  # late: as above

        prepared, target = inferred.study.prepared, inferred.output.target
        memory = self._memory()
        self._needed(prepared.plan, memory)
        whole = np.empty(target.values.shape, np.float32)
        with open_cpu_volume_generator(self._model.network, memory) as generator:
            generator.translate_volume(prepared.network_input, Stored(whole), on_share)
        source = prepared.network_input
        first = Stored(source.values[:1], source.scaling)
        body = source.scaling.forward(source.values[0]) > level_of(first)
        outward = prepared.fit.outward
        each = (
            _difference(target, whole[channel][body], target.values[channel][body], fitted.values)
            for channel, fitted in enumerate(outward)
        )
        return max(each, key=lambda found: found.share)


def _difference(
    target: Stored,
    whole: FloatArray,
    stored: FloatArray,
    in_unit: Callable[[FloatArray], FloatArray],
) -> _Difference:
    """Compare voxels of a channel. whole: network intensities. stored: the result's own voxels.

    in_unit: returns values in the result's unit. The whole volume is rounded as the result is.
    """
    rounded = np.empty_like(stored)
    target.scaling.store(whole, rounded)
    wanted, made = (in_unit(target.scaling.forward(each)) for each in (rounded, stored))
    apart = made - wanted
    square = float(np.mean(np.square(apart), dtype=np.float64))
    spread = float(np.std(wanted, dtype=np.float64))
    return _Difference(float(np.abs(apart).mean()), sqrt(square) / max(spread, 1e-12))
