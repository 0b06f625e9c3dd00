"""One job of the queue, done by the very code that `translate` runs."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from ..engine.cpu import Generator as Translation
from ..engine.devices import Device, choose_device, open_generator
from ..engine.errors import DeviceUnavailableError, EngineError
from ..engine.model import Model
from ..engine.model_file import load_model
from ..io.atomic import remove_leftovers
from ..io.discovery import discover
from ..io.errors import ScanError, UnreadableScanError
from ..io.volume import Study
from .batch import Batch
from .errors import OutputFolderError, QueueError, SettingsError
from .events import Listen
from .failures import failure_of
from .manifest import Manifest, Recipe
from .plan import Planner
from .queue_job import StudyJob
from .report import StudyReport
from .settings import Precision, TranslateSettings
from .study_run import Translator
