"""Translator: a model that stays open on a device, and translates scans one by one."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Self, cast

import numpy as np
import numpy.typing as npt

from ...engine.generator import SharedGenerator
from ...engine.model.model_file import Model
from ...engine.network.layers import Triple
from ...engine.options import NO_LIMITS, Blend, CudaLimits, Inference, Precision
from ...io.channels import joined
from ...io.conversion import AnyPath, AnyScan, as_volume, volume_of
from ...io.discovery import Discovery, only_study, sound
from ...io.volume import Study, Volume
from ..decisions import decided
from ..errors import SettingsError
from ..events import DeviceOpened, Listen, TilesDone, opening_event, unit_of
from ..results.earlier_results import discover_scans
from ..run.networks import Networks
from ..settings import DEFAULTS, Overlap, ResolvedOptions, TranslateOptions
from ..stopwatch import Stopwatch
from ..study.plan import check_count
from ..study.prepare import without_nan
from ..study.selection import contrast_checked, studies_for, without_masks
from ..study.translator import Scans, StudyTranslator
from .arguments import listener, mapping_of, model_of, paths_of, record, typed
from .folder import ignore_event

_AXES_OF_CHANNELS = 4
"""Number of axes of an array [channel, i, j, k]."""


class Translator:
    """Model that is open on one device from its creation until it is closed; a context manager.

    Any number of threads may translate with it at a time. A forked process must open its own.

    >>> with Translator(load_model("t1-to-t2.safetensors"), device="cpu") as translator:
    ...     made = translator.translate_file("scans/a.nii.gz")
    >>> made.shape
    (20, 18, 16)
    """

    def __init__(
        self,
        model: Model | AnyPath,
        device: str = "auto",
        precision: Precision | None = None,
        *,
        patch: Triple | None = None,
        overlap: Overlap | None = None,
        blend: Blend | None = None,
        resample_channels: bool = False,
        inference: Inference | None = None,
        nan_to: float | None = None,
        fewest_slices: int = DEFAULTS.fewest_slices,
        allow_uneven: bool = False,
        any_contrast: bool = False,
        allow_synthetic: bool = False,
        limits: CudaLimits = NO_LIMITS,
        on_event: Listen = ignore_event,
    ) -> None:
        """Open a model on a device, which may take seconds, and a minute on a GPU new to it.

        model: model or the path of its file.
        device: "auto" (a GPU, or else the CPU), "cpu", "cuda:N" or "onnxruntime:PROVIDER".
        precision: precision of the network's arithmetic; None takes fp16 on a GPU and fp32
        otherwise. patch: extents (D, H, W) of a patch in voxels; None takes those of the training.
        overlap: share of its edge that neighbours share, on all axes or along D, H and W. blend:
        weights of overlapping patches. None takes those of the model card for both.
        resample_channels: whether scans of a study on other grids than its first are resampled onto
        that, instead of refused. inference: "patches", or "volume" for one pass of the network over
        each volume; None takes that of the model card, else "volume" if no norm takes statistics of
        a patch. nan_to: replacement for NaN in a scan, in its unit; None refuses such scans.
        fewest_slices, allow_uneven: for DICOM series, least number of images of a volume, and
        whether stacks with gaps, uneven spacing or tilt are resampled, instead of refused.
        any_contrast, allow_synthetic: whether files of another contrast than the model's source,
        masks, and results of this program are taken, instead of refused. limits: limits on the use
        of a GPU. on_event: called with Tuning, Remark and DeviceOpened while this opens, and with
        TilesDone in the thread that translates.

        Raises DeviceUnavailableError or another EngineError, and SettingsError.
        """
        asked = TranslateOptions(
            patch=patch,
            overlap=overlap,
            blend=blend,
            precision=precision,
            resample_channels=resample_channels,
            inference=inference,
            nan_to=nan_to,
            fewest_slices=fewest_slices,
            allow_uneven=allow_uneven,
            any_contrast=any_contrast,
            allow_synthetic=allow_synthetic,
        )
        asked, limits = record("", TranslateOptions, asked), record("limits", CudaLimits, limits)
        self._on_event = listener(on_event)
        self.model = model_of(model)
        device = typed("device", str, device)
        (on, *others), self._options = decided(self.model, device, limits, asked)
        if others:
            raise SettingsError(
                f"Device {device} names several devices; a translator uses one.", "device"
            )
        self._opened = ExitStack()
        with ExitStack() as opening:
            networks = opening.enter_context(Networks(on))
            use = networks.use((self.model, self._options), progress=self._report_opening)
            [generator] = opening.enter_context(use)
            self._generator: SharedGenerator | None = generator
            self.device: str = generator.open(self._options.precision)
            on_event(DeviceOpened(self.device, on.note))
            self._opened = opening.pop_all()

    def __repr__(self) -> str:
        return f"Translator({self.model.card.name}, {self.device})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the device's memory; no thread may be translating.

        CUDA's libraries keep their context on a GPU, some 550 MiB, until the process ends.
        """
        self._generator = None
        self._opened.close()

    def translate(
        self, voxels: npt.ArrayLike | AnyScan, affine: npt.ArrayLike | None = None
    ) -> Volume:
        """Translate an array, which stays as it is, onto the same grid.

        voxels: [i, j, k] in the scan's unit, such as HU, whole or floating-point numbers; for a
        model with several input channels [channel, i, j, k], in its order. affine: (4, 4), from
        (i, j, k, 1) to millimetres in RAS+; None for a Volume, image or path, which has its own
        and is translated as by `translate_volume`. The result's `values()` are float32
        [i, j, k] in the unit of the target scans; its `voxels` are these as a file would store
        them.

        Raises UnsupportedScanError for arrays of other shapes and types, PreparationError for a
        scan that the model cannot take, and EngineError.

        >>> import numpy
        >>> voxels = numpy.random.default_rng(0).integers(0, 900, (20, 18, 16))
        >>> with Translator(load_model("t1-to-t2.safetensors"), device="cpu") as translator:
        ...     made = translator.translate(voxels, numpy.diag([1.0, 1.0, 1.0, 1.0]))
        >>> made.values().shape
        (20, 18, 16)
        """
        if affine is None:
            return self.translate_volume(cast("AnyScan", voxels))
        array, channels = cast("npt.ArrayLike", voxels), len(self.model.card.input_channels)
        if channels == 1 or np.ndim(array) != _AXES_OF_CHANNELS:
            return self.translate_volume(volume_of(array, affine))
        each = cast("Sequence[npt.ArrayLike]", array)
        return self.translate_volume([volume_of(channel, affine) for channel in each])

    def translate_file(
        self,
        path: AnyPath | Sequence[AnyPath],
        *,
        volume_index: int | None = None,
        channels: Mapping[str, str] = MappingProxyType({}),
    ) -> Volume:
        """Translate the only scan of a file or folder; writes nothing.

        path: a NIfTI, NRRD or MetaImage file, or a folder with one DICOM series; for a model that
        takes several channels one of each, in its order, or a folder with them, named as in BIDS.
        volume_index: index from 0 in a file of several volumes; None refuses such files.
        channels: patterns by the names of channels, if scans in a folder are named otherwise.

        Raises ScanError for a path that cannot be read or is not one scan, PreparationError,
        EngineError.

        >>> with Translator(load_model("t1-to-t2.safetensors"), device="cpu") as translator:
        ...     made = translator.translate_file("scans/a.nii.gz")
        >>> to_nibabel(made).affine.shape
        (4, 4)
        """
        self._check_makes_one()
        asked = replace(self._options, volume_index=volume_index)
        options = record("", ResolvedOptions, asked)
        study = self._study_at(paths_of("path", path), mapping_of("channels", channels))
        scans = StudyTranslator(self.model, options).read(study)
        [result] = self._translated(scans, str(study.name))
        return result

    def _study_at(self, paths: Sequence[Path], channels: Mapping[str, str]) -> Study:
        """Return the only study of one path, or of a path per channel. Raises ScanError."""
        card, choice = self.model.card, self._options.choice()
        if len(paths) == 1:
            [path] = paths
            found = discover_scans([path], None, choice)
            found = studies_for(found, card, choice.takes, tuple(channels.items()))
            return only_study(path, found)
        scans = [only_study(path, self._without_masks(path)) for path in paths]
        check_count(scans, card)
        study = contrast_checked(joined(scans, card.input_channels), card, choice.takes)
        return sound(study, study.files[0])

    def _without_masks(self, path: Path) -> Discovery:
        choice = self._options.choice()
        return without_masks(discover_scans([path], None, choice), self.model.card, choice.takes)

    def translate_volume(self, volume: AnyScan | Sequence[AnyScan], name: str = "") -> Volume:
        """Translate a volume, such as `from_nibabel` makes, onto the same grid.

        volume: volume, image of nibabel or SimpleITK, or path; for a model with several input
        channels one of each, in its order. name: study name in the events. Raises ScanError for
        anything but a scan, PreparationError and EngineError, and SettingsError for a model with
        several output volumes. The result has notes for the user on how it was made.

        >>> import nibabel
        >>> scan = from_nibabel(nibabel.load("scans/a.nii.gz"))
        >>> with Translator(load_model("t1-to-t2.safetensors"), device="cpu") as translator:
        ...     made = translator.translate_volume(scan)
        >>> bool((made.affine == scan.affine).all())
        True
        """
        self._check_makes_one()
        [result] = self.translate_channels(volume, name)
        return result

    def _check_makes_one(self) -> None:
        count = len(self.model.card.output_channels)
        if count > 1:
            raise SettingsError(f"The model has {count} volumes; call translate_channels for it.")

    def translate_channels(
        self, volumes: AnyScan | Sequence[AnyScan], name: str = ""
    ) -> tuple[Volume, ...]:
        """Translate the scans of one study, and return a volume for each output channel.

        volumes: volumes, images or paths, in the order of the model's channels, on one grid; the
        results are on the grid of the first. name: study name in the events. Raises ScanError,
        PreparationError and EngineError. The first result has notes for the user on how all were
        made.

        >>> import nibabel
        >>> scan = from_nibabel(nibabel.load("scans/a.nii.gz"))
        >>> with Translator(load_model("t1-to-t2.safetensors"), device="cpu") as translator:
        ...     results = translator.translate_channels([scan])
        >>> len(results)
        1
        """
        return self._translated(self._scans(volumes), name)

    def _scans(self, given_scans: AnyScan | Sequence[AnyScan]) -> Scans:
        """Return the scans of one study, with NaN replaced if requested.

        The caller's arrays are not changed, even if they are writable. Raises ScanError or
        PreparationError.
        """
        card, options = self.model.card, self._options
        translator = StudyTranslator(self.model, options)
        several = isinstance(given_scans, Sequence) and not isinstance(given_scans, str)
        each = cast("Sequence[AnyScan]", given_scans if several else [given_scans])
        if all(isinstance(scan, str | PathLike) for scan in each):
            study = self._study_at(paths_of("path", each), {})
            return translator.read(study)
        volumes = [as_volume(scan) for scan in each]
        check_count(volumes, card)
        if options.nan_to is not None:
            volumes = [without_nan(_read_only(volume), options.nan_to) for volume in volumes]
        return translator.align(volumes, card.input_channels)

    def _translated(self, scans: Scans, name: str) -> tuple[Volume, ...]:
        """Return the volumes that the network computes from the scans of one study."""
        generator = self._generator
        if generator is None:
            raise RuntimeError("This translator is closed; create another.")
        translator = StudyTranslator(self.model, self._options, Stopwatch(name))
        plan = translator.plan(scans)
        prepared = translator.prepare(scans, plan)

        def on_patches(done: int, total: int) -> None:
            self._on_event(TilesDone(name, done, total, unit_of(plan)))

        inferred = translator.infer(prepared, generator, on_patches)
        finished = translator.finish(inferred)
        first, *others = finished.volumes
        notes = *scans.notes, *prepared.notes, *inferred.notes, *finished.notes
        return replace(first, notes=notes), *others

    def _report_opening(self, what: str, share: float | None) -> None:
        self._on_event(opening_event(what, share))


def _read_only(volume: Volume) -> Volume:
    """Return the volume with a read-only view of its voxels."""
    voxels = volume.voxels.view()
    voxels.flags.writeable = False
    return replace(volume, voxels=voxels)
