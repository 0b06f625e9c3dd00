"""Networks that are open on a device, and the model on the CPU that verifies their results."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Self, TypeAlias

from ...engine.devices import (
    Device,
    open_generator,
    open_volume_generator,
    with_half_the_memory,
)
from ...engine.generator import AnyGenerator, SharedGenerator, shared_generator
from ...engine.model.model_file import Model
from ...engine.network.graph import Network
from ...engine.network.layers import Triple
from ...engine.options import Precision, Progress, ignore_progress
from ...engine.whole_volume import HostBudget
from ..host.memory import available_memory
from ..settings import ResolvedOptions
from ..study.verify import StudyVerifier, study_verifier

_MAPS_SHARE, _PINNED_SHARE = 4, 2
"""Divisors of the free host memory for feature maps on the CPU, and for pinned ones of a GPU.

Half of the free memory is for the arrays of studies. Of the other half, feature maps of a network
on the CPU, which has further buffers, get one half, and maps that a GPU keeps in pinned memory
get all.
"""


def maps_memory() -> int:
    """Return the bytes of host memory that a volume's feature maps may take now on the CPU."""
    return available_memory() // _MAPS_SHARE


def pinned_memory() -> int:
    """Return the bytes of host memory that a GPU's feature maps may take now.

    Pinned memory is never swapped.
    """
    return available_memory() // _PINNED_SHARE


def maps_budget(device: Device) -> HostBudget:
    """Return the host memory budget for feature maps of whole-volume inference on a device."""
    return pinned_memory if device.kind == "cuda" else maps_memory


OpenNetwork: TypeAlias = Callable[
    [Network, Device, Triple | None, Precision, Progress], AbstractContextManager[AnyGenerator]
]
"""Function that opens a network on a device in a precision, for patches of a shape (D, H, W), or
for whole volumes if None. The progress is that of the search for tactics."""


def open_network(
    network: Network,
    device: Device,
    patch: Triple | None,
    precision: Precision,
    progress: Progress = ignore_progress,
) -> AbstractContextManager[AnyGenerator]:
    """Open a network as `OpenNetwork` describes."""
    if patch is None:
        budget = maps_budget(device)
        return open_volume_generator(network, device, precision, budget, progress)
    return open_generator(network, device, precision, patch, progress)


NetworkUse: TypeAlias = tuple[Model, ResolvedOptions]
"""Model, and the options of its studies."""

_Key: TypeAlias = tuple[str, Triple | None]
"""Hash of a model, and the patch shape that its network is opened for."""


def _key(use: NetworkUse) -> _Key:
    model, options = use
    return model.sha256, options.opened_for


@dataclass(frozen=True, slots=True)
class _EarlyOpening:
    """Network that opens before its first use."""

    key: _Key
    precision: Precision
    opened: Future[tuple[AnyGenerator, ExitStack]] = field(
        default_factory=Future[tuple[AnyGenerator, ExitStack]]
    )


class Networks:
    """Only owner of the networks that are open on a device, shared by threads; a context manager.

    Each network is open in one precision at a time. keeps: whether networks stay open after their
    use, until other ones are used. is_halved: whether the device's memory limit is already that of
    one of two networks. open_network: function that opens each network.
    """

    def __init__(
        self,
        device: Device,
        *,
        keeps: bool = False,
        is_halved: bool = False,
        open_network: OpenNetwork = open_network,
    ) -> None:
        self._device = device
        self._keeps = keeps
        self._is_halved = is_halved
        self._open_network = open_network
        self._keys: tuple[_Key, ...] = ()
        self._shared: tuple[SharedGenerator, ...] = ()
        self._opened, self._verifying = ExitStack(), ExitStack()
        self._verifier: tuple[str, StudyVerifier] | None = None
        self._early: _EarlyOpening | None = None
        self._reporting = threading.Lock()
        self._listener: Progress | None = None
        self._unreported: list[tuple[str, float | None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_early(self, model: Model, options: ResolvedOptions) -> None:
        """Start to open a network in a thread, for the first use in the precision of the options.

        `close` closes the network if it is open but unused by then. A network that is still
        opening is left to the end of the process.
        """
        self._early = _EarlyOpening(_key((model, options)), options.precision)
        opening = partial(self._open_early, self._early, model)
        threading.Thread(target=opening, name="opening", daemon=True).start()

    @contextmanager
    def use(
        self, *wanted: NetworkUse, progress: Progress = ignore_progress
    ) -> Generator[tuple[SharedGenerator, ...]]:
        """Own these networks during the block, and no other ones.

        Each is opened by the first work that needs it. Two get half of the device's memory each.
        progress: called with the reports of opening so far, and those from now on.
        """
        self._report_to(progress)
        if self._keys != (keys := tuple(map(_key, wanted))):
            self.close_networks()
            is_pair = len(wanted) > 1 and not self._is_halved
            device = with_half_the_memory(self._device) if is_pair else self._device
            self._shared = tuple(self._sharing(use, device) for use in wanted)
            self._keys = keys
        try:
            yield self._shared
        finally:
            self._listener = ignore_progress
            if not self._keeps:
                self.close_networks()

    def tune(self, until: float, progress: Progress) -> None:
        """Let the networks that stay open search for faster tactics, for later starts.

        until: time of the monotonic clock from which nothing more is begun. progress: may raise an
        error, which ends the search.
        """
        for shared in self._shared:
            shared.tune(until, progress)

    def verifier(self, model: Model) -> StudyVerifier:
        """Return the verifier, which recomputes parts of results on the CPU and opens on first use.

        It stays open until a verifier of another model is requested, or until `end_verifying`.
        """
        if self._verifier is None or self._verifier[0] != model.sha256:
            self._close_verifier()
            opening = study_verifier(model, maps_memory)
            self._verifier = model.sha256, self._verifying.enter_context(opening)
        return self._verifier[1]

    def end_verifying(self) -> None:
        """Close the verifier, unless it is kept."""
        if not self._keeps:
            self._close_verifier()

    def close_networks(self) -> None:
        """Close all networks, which frees their device memory."""
        self._keys = self._shared = ()
        self._opened.close()

    def close(self) -> None:
        """Close kept networks, and a network that was opened early but never used.

        Other networks are closed at the end of their use, as a hanging thread may still use them
        after a stop.
        """
        if self._keeps:
            self.close_networks()
            self._close_verifier()
        early, self._early = self._early, None
        if early and early.opened.done() and not early.opened.exception():
            _, opened = early.opened.result()
            opened.close()

    def _close_verifier(self) -> None:
        self._verifier = None
        self._verifying.close()

    def _sharing(self, use: NetworkUse, device: Device) -> SharedGenerator:
        opening = shared_generator(partial(self._open, use, device), device.precisions)
        return self._opened.enter_context(opening)

    @contextmanager
    def _open(
        self, use: NetworkUse, device: Device, precision: Precision
    ) -> Generator[AnyGenerator]:
        model, options = use
        early = self._early
        if early and (early.key, early.precision) == (_key(use), precision):
            self._early = None
            generator, opened = early.opened.result()
            with opened:
                yield generator
            return
        patch = options.opened_for
        with self._open_network(model.network, device, patch, precision, self._report) as generator:
            yield generator

    def _open_early(self, early: _EarlyOpening, model: Model) -> None:
        patch = early.key[1]
        try:
            with ExitStack() as opened:
                opening = self._open_network(
                    model.network, self._device, patch, early.precision, self._report
                )
                generator = opened.enter_context(opening)
                early.opened.set_result((generator, opened.pop_all()))
        except BaseException as error:
            early.opened.set_exception(error)

    def _report(self, what: str, share: float | None) -> None:
        with self._reporting:
            listener = self._listener
            if listener is None:
                self._unreported.append((what, share))
        if listener:
            listener(what, share)

    def _report_to(self, listener: Progress) -> None:
        with self._reporting:
            for what, share in self._unreported:
                listener(what, share)
            self._unreported.clear()
            self._listener = listener
