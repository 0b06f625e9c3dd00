"""Public API for other programs, re-exported by the root package.

May import all of pipelines, engine and io. Must not print, handle signals or keep global state.
"""

from ...engine.errors import DeviceUnavailableError, EngineError, ModelFileError
from ...engine.importing.checkpoint.evidence import NetworkChoices
from ...engine.model.intensity_maps import (
    ClipPercentiles,
    ClipValues,
    GammaCurve,
    Identity,
    IntensityMap,
    Logarithm,
    MinMax,
    Percentiles,
    SampleZScore,
    Standard,
    Steps,
    Window,
    ZScore,
)
from ...engine.model.model_card import ModelCard
from ...engine.model.model_file import Model, load_model
from ...engine.options import CudaLimits
from ...io.conversion import from_nibabel, from_simpleitk, to_nibabel, to_simpleitk
from ...io.errors import ScanError
from ...io.volume import Volume
from ..errors import PipelineError, UndecidedError
from ..events import (
    BatchStarted,
    DeviceOpened,
    Event,
    Remark,
    StudyDone,
    StudyStarted,
    TilesDone,
    Tuning,
    Worked,
)
from ..model_import.card_draft import CardDraft
from ..program import program_version
from ..report.report import BatchReport, Failure, StudyReport
from ..settings import CycleCheck, TranslateOptions
from .checkpoint import from_torch, import_checkpoint
from .folder import (
    FolderShard,
    FoundStudy,
    PlannedRow,
    discover,
    plan,
    shards,
    translate_folder,
    translate_shard,
)
from .looking import EvaluatedStudy, Picture, evaluate, preview, show
from .translator import Translator

__version__ = program_version()
__all__ = [
    "BatchReport",
    "BatchStarted",
    "CardDraft",
    "ClipPercentiles",
    "ClipValues",
    "CudaLimits",
    "CycleCheck",
    "DeviceOpened",
    "DeviceUnavailableError",
    "EngineError",
    "EvaluatedStudy",
    "Event",
    "Failure",
    "FolderShard",
    "FoundStudy",
    "GammaCurve",
    "Identity",
    "IntensityMap",
    "Logarithm",
    "MinMax",
    "Model",
    "ModelCard",
    "ModelFileError",
    "NetworkChoices",
    "Percentiles",
    "Picture",
    "PipelineError",
    "PlannedRow",
    "Remark",
    "SampleZScore",
    "ScanError",
    "Standard",
    "Steps",
    "StudyDone",
    "StudyReport",
    "StudyStarted",
    "TilesDone",
    "TranslateOptions",
    "Translator",
    "Tuning",
    "UndecidedError",
    "Volume",
    "Window",
    "Worked",
    "ZScore",
    "__version__",
    "discover",
    "evaluate",
    "from_nibabel",
    "from_simpleitk",
    "from_torch",
    "import_checkpoint",
    "load_model",
    "plan",
    "preview",
    "shards",
    "show",
    "to_nibabel",
    "to_simpleitk",
    "translate_folder",
    "translate_shard",
]
