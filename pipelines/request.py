"""Request of a user: scans, model and options. It becomes a job, run now or from a queue."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ..engine.model.model_file import Model, load_model
from ..engine.options import NO_LIMITS, CudaLimits
from ..io.choice import EVERYTHING, Choice
from ..io.discovery import Discovery, KnownHeaders
from .results.earlier_results import discover_scans
from .results.names import (
    MOVE,
    named_result,
    read_only_refused,
    results_named,
    rivals_refused,
)
from .settings import DEFAULTS, TranslateOptions
from .shard import Shard
from .study.maps import requested_maps
from .study.selection import studies_for

Search: TypeAlias = Callable[[Model], Discovery]
"""Function that finds studies, and checks them against a model."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request of the user. filters: filters of DICOM series.

    inputs: files and folders. model: its file. output: the folder of results. result: name of the
    only result there; "" mirrors the inputs. device: as for `choose_devices`. limits: limits on the
    use of a GPU. options: options of each study. shard: share of the studies, None for all.
    """

    inputs: tuple[Path, ...]
    model: Path
    output: Path
    result: str = ""
    device: str = "auto"
    limits: CudaLimits = NO_LIMITS
    options: TranslateOptions = DEFAULTS
    filters: Choice = EVERYTHING
    shard: Shard | None = None

    def search(self, model: Model, known: KnownHeaders | None = None) -> Discovery:
        """Return the studies, or those of a shard, checked against the model. Raises ScanError,
        SettingsError or OutputFolderError.

        known: headers of the inputs that earlier searches of this request read.
        """
        found = self._whole_search(model, known)
        return self.shard.of(found) if self.shard else found

    def _whole_search(self, model: Model, known: KnownHeaders | None) -> Discovery:
        card, choice = model.card, self.options.choice(self.filters)
        known = known or KnownHeaders()  # reads each header only once
        # The folder of one named result may contain the scan as well.
        found = discover_scans(self.inputs, None if self.result else self.output, choice, known)
        found = studies_for(found, card, choice.takes, choice.channels, known)
        if self.result:
            found = named_result(found, self.output / self.result)
        else:
            found = results_named(found, model, self.options, self.output)
        maps = requested_maps(self.options, card)
        return rivals_refused(
            read_only_refused(found),
            self.output,
            maps,
            preview=self.options.preview,
            sidecars=self.options.has_sidecars,
            remedy=f"{MOVE}, or change setting result-name" if self.options.result_name else MOVE,
        )

    def volumes(self) -> int:
        """Return the number of results and maps of a study. Raises ModelFileError."""
        card = load_model(self.model).card
        return len(card.targets) + len(requested_maps(self.options, card))

    def cached_search(self) -> Search:
        """Return a `search` for repeated calls, which reads unchanged DICOM files only once."""
        return partial(self.search, known=KnownHeaders())
