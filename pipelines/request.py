"""What a user asks for: which scans become what. A job of now or of a queue comes of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ..engine.model.model_file import Model
from ..engine.options import NO_LIMITS, CudaLimits
from ..io.choice import EVERYTHING, Choice
from ..io.discovery import Discovery, KnownHeaders
from .results.earlier_results import discover_scans
from .results.named_result import named_result
from .results.names import results_named
from .results.rivals import MOVE, rivals_refused
from .settings import DEFAULTS, TranslateOptions
from .study.maps import maps_asked_for
from .study.selection import studies_for

Search: TypeAlias = Callable[[Model], Discovery]
"""Finds studies, and holds them against a model."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for. filters: for DICOM series; what they are to become is an option.

    inputs: files and folders. model: its file. output: the folder of results. result: name of the
    only one there; "" mirrors the inputs. device: as `choose_devices` takes it. limits: of what may
    be taken of a card. options: about each study.
    """

    inputs: tuple[Path, ...]
    model: Path
    output: Path
    result: str = ""
    device: str = "auto"
    limits: CudaLimits = NO_LIMITS
    options: TranslateOptions = DEFAULTS
    filters: Choice = EVERYTHING

    def search(self, model: Model, known: KnownHeaders | None = None) -> Discovery:
        """Its studies, held against the model. Raises ScanError, SettingsError or
        OutputFolderError.

        known: what earlier searches of this request read of the inputs.
        """
        card, choice = model.card, self.options.choice(self.filters)
        known = (
            known or KnownHeaders()
        )  # by which a header is read once for all that is asked of it
        # The folder of one result that has a name may hold the scan as well.
        found = discover_scans(self.inputs, None if self.result else self.output, choice, known)
        found = studies_for(found, card, choice.takes, choice.channels, known)
        if self.result:
            found = named_result(found, self.output / self.result)
        else:
            found = results_named(found, model, self.options, self.output)
        maps = maps_asked_for(self.options)
        return rivals_refused(
            found,
            self.output,
            maps,
            preview=self.options.preview,
            sidecars=self.options.has_sidecars,
            remedy=f"{MOVE}, or change setting result-name" if self.options.result_name else MOVE,
        )

    def search_again_and_again(self) -> Search:
        """As `search`, to be called many times: DICOM files that do not change are read no more."""
        return partial(self.search, known=KnownHeaders())
