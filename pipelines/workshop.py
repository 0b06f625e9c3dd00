"""Where a worker does its jobs: by the code that `translate` runs, with the model kept warm."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from ..engine.cpu import Generator
from ..engine.devices import CudaLimits, Device, Precision, choose_device, open_generator
from ..engine.errors import DeviceUnavailableError, EngineError, ModelFileError
from ..engine.model import Model
from ..engine.model_file import load_model
from ..io.atomic import remove_leftovers
from ..io.choice import Choice
from ..io.discovery import discover
from ..io.errors import ScanError, UnreadableScanError
from ..io.volume import Study
from .errors import OutputFolderError, SettingsError
from .events import Listen
from .failures import failure_of
from .manifest import Manifest, Recipe
from .memory import available_memory
from .plan import PlannedStudy, Planner
from .queue_job import StudyJob
from .report import Failure, StudyReport
from .room import Room
from .settings import Extras, TranslateSettings
from .stations import Stations, Task
from .storing import Store
from .study_run import Translator


@dataclass(frozen=True, slots=True)
class _Tool:
    """A model that is open on the device."""

    path: str
    sha256: str
    precision: Precision
    patch: tuple[int, int, int]
    model: Model
    generator: Generator


class Workshop:
    """One device with the last model on it, and the last output folder; a context manager.

    device: as `--device` takes it, but at most one GPU; limits: of what it may take there.
    """

    def __init__(self, device: str, limits: CudaLimits) -> None:
        self._device: Device = choose_device(device, limits)
        self._tool: _Tool | None = None
        self._manifest: Manifest | None = None
        self._tool_stack = ExitStack()
        self._folder_stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.rest()
        self._tool_stack.close()

    def rest(self) -> None:
        """Let go of the output folder, so that other programs may have it."""
        self._manifest = None
        self._folder_stack.close()

    def do(self, job: StudyJob, listen: Listen) -> StudyReport:
        """Translate a job's study unless its result is up to date; the row says how it went.

        A KeyboardInterrupt gives a row that is "interrupted". Raises DeviceUnavailableError, which
        is no fault of the job.
        """
        try:
            return self._do(job, listen)
        except KeyboardInterrupt:
            return replace(row_of(job), status="interrupted")
        except DeviceUnavailableError:
            raise
        except (ScanError, EngineError, OutputFolderError, SettingsError, OSError) as error:
            return replace(row_of(job), status="failed", failure=_failure(error))

    def _do(self, job: StudyJob, listen: Listen) -> StudyReport:
        study = find_study(job)
        manifest = self._open_folder(Path(job.output))
        precision = self._precision(job)
        settings = TranslateSettings(
            patch=job.patch,
            overlap=job.overlap,
            blend=job.blend,
            precision=precision,
            volume_index=job.volume_index,
        )
        recipe = Recipe(job.model_sha256, settings.sha256())
        entries = manifest.entries
        planner = Planner(manifest.output, entries, recipe, job.overwrite, job.preview)
        [planned] = planner.plan([study])
        if planned.refreshed:
            manifest.append(planned.refreshed)
        if planned.action == "keep":
            return row_of(job)
        tool = self._open_tool(job, precision)
        task = Task(
            model=tool.model,
            settings=settings,
            open_generator=lambda wider, progress: open_generator(
                tool.model.network, self._device, wider, job.patch, progress
            ),
            store=Store(manifest, recipe, tool.model.card),
            extras=Extras(job.preview, job.seam_score),
        )
        return _translated(planned, task, tool.generator, listen)

    def _open_folder(self, output: Path) -> Manifest:
        if self._manifest and self._manifest.output == output:
            self._manifest.refresh()
            return self._manifest
        self.rest()
        self._manifest = self._folder_stack.enter_context(Manifest(output, shared=True))
        remove_leftovers(output)
        return self._manifest

    def _open_tool(self, job: StudyJob, precision: Precision) -> _Tool:
        tool = self._tool
        wanted = job.model, job.model_sha256, precision, job.patch
        if tool and (tool.path, tool.sha256, tool.precision, tool.patch) == wanted:
            return tool
        self._tool = None
        self._tool_stack.close()
        model = load_model(Path(job.model))
        if model.sha256 != job.model_sha256:
            raise ModelFileError(
                f"{job.model} is another model than when the job was submitted; submit again, or "
                "put the old file back."
            )
        model.network.graph.check_patch(job.patch)
        generator = self._tool_stack.enter_context(
            open_generator(model.network, self._device, precision, job.patch)
        )
        self._tool = _Tool(*wanted, model, generator)
        return self._tool

    def _precision(self, job: StudyJob) -> Precision:
        precision = job.precision or self._device.default_precision
        if precision not in self._device.precisions:
            raise SettingsError(
                f"The {self._device.kind} of this worker does not compute in {precision}; submit "
                "without --precision, or work with another --device."
            )
        return precision


def _translated(
    planned: PlannedStudy, task: Task, generator: Generator, listen: Listen
) -> StudyReport:
    """The row of a study that goes through all stations in this thread."""
    stations = Stations(task, Room(available_memory()), listen)
    loaded = stations.load(planned)
    inferred = stations.infer(loaded, Translator(task.model, generator, task.settings))
    stations.store(stations.finish(inferred))
    return stations.rows[str(planned.study.name)]


def find_study(job: StudyJob) -> Study:
    """The study of a job, found again among its files. Raises ScanError."""
    choice = Choice(
        fewest_slices=job.fewest_slices,
        allow_uneven=job.allow_uneven,
        format=job.output_format,
    )
    found = discover([Path(file) for file in job.files], Path(job.output), choice)
    for study in found.studies:
        if set(map(str, study.files)) == set(job.files):
            return replace(study, name=PurePosixPath(job.study))
    why = f" ({found.skipped[0].reason})" if found.skipped else ""
    raise UnreadableScanError(f"{job.files[0]} is no study any more{why}; submit it again.")


def row_of(job: StudyJob) -> StudyReport:
    """The row of a job about which nothing else is known."""
    return StudyReport(
        name=job.study, source=Path(job.files[0]), output=job.target, status="up to date"
    )


def _failure(error: Exception) -> Failure:
    match error:
        case OutputFolderError():
            return Failure("write", str(error), None)
        case SettingsError():
            return Failure("engine", str(error), None)
        case OSError():
            path, why = error.filename or "A file", error.strerror or error
            return Failure("write", f"{path} cannot be used ({why}).", None)
        case _:
            failure = failure_of(error, None)
            return replace(failure, kind="unreadable") if type(error) is ScanError else failure
