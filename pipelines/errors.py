"""Errors of the pipelines, each a sentence for the user.

PipelineError
├── PreparationError   a volume cannot be brought into, or back from, model space
│   └── UnexpectedInputError  a scan is unlike those of the calibration, and such are refused
├── OccupiedError      a file that this program did not make stands where a result would go
├── ComparisonError    a result and its truth cannot be compared
├── VerificationError  a result is not what a second computation gives
├── UndecidedError     facts about a checkpoint must be stated by the user
├── SettingsError      the request does not fit the model or the device
├── OutputFolderError  the output folder cannot be used at all
│   ├── OutputFolderAwaitedError  for now: its disk is full, or another run has it
│   └── NewerRecordError  its record was written by a newer version of this program
├── QueueError         the job queue cannot be used, or does not hold what was asked for
│   └── QueueLostError it could be used before; trying again later may help
├── ConfigError        a config file is damaged or holds a key or value that is not known
├── MissingLibraryError  a library that only this request needs is not installed
├── PairsFileError     a table of results and truths is none, or a damaged one
├── ReviewFileError    a file of marks is none, or a damaged one
└── ReportFileError    a file is not a report of a batch, or a damaged one
Settings and output folder stop a batch before its first study.
"""

from importlib.util import find_spec


class PipelineError(Exception):
    """Base of all pipeline errors; the message says what, where and what to do.

    settings: settings at fault or to change, named as arguments and fields of the Python API; a
    SettingsError has them.
    """

    settings: tuple[str, ...] = ()


class PreparationError(PipelineError):
    """A volume cannot be brought into, or back from, model space; the batch continues."""


class UnexpectedInputError(PreparationError):
    """A scan is unlike those that the model was calibrated with, and such are to be refused."""


class OccupiedError(PipelineError):
    """A foreign file would be destroyed; this study fails and the batch goes on."""


class ComparisonError(PipelineError):
    """A result and its truth cannot be compared; this study fails and the others go on."""


class VerificationError(PipelineError):
    """A result is not what a second computation gives; this study fails and the batch goes on."""


class UndecidedError(PipelineError):
    """Facts about a checkpoint must be stated before it can become a model.

    fields: fields of CardDraft and NetworkChoices that must be stated.
    """

    def __init__(self, message: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class SettingsError(PipelineError):
    """The request does not fit the model or the device."""

    def __init__(self, message: str, *settings: str) -> None:
        super().__init__(message)
        self.settings = settings


class OutputFolderError(PipelineError):
    """The output folder cannot be made or written, or another run is using it."""


class OutputFolderAwaitedError(OutputFolderError):
    """The output folder can be used again once its disk has space, or another run has ended."""


class NewerRecordError(OutputFolderError):
    """Only the version that wrote the folder's record, or a newer one, can read it."""


class QueueError(PipelineError):
    """The job queue cannot be used, or does not hold what was asked for."""


class QueueLostError(QueueError):
    """The queue's database does not answer, which may pass."""


class ConfigError(PipelineError):
    """A config file cannot be read, or holds a key or value that is not known."""


class MissingLibraryError(PipelineError):
    """An optional library is not installed."""


def check_installed(package: str, user: str, extra: str) -> None:
    """Raise MissingLibraryError if an optional package is absent.

    user: what needs it, with the verb. extra: the extra of this program that installs it.
    """
    if find_spec(package.replace("-", "_")) is None:
        raise MissingLibraryError(
            f"{user} {package}, which is not installed; run pip install 'cuda-cyclegan[{extra}]'."
        )


class ReportFileError(PipelineError):
    """A file is not a report of a batch, is of a newer version, or damaged."""


class PairsFileError(PipelineError):
    """A table of results and their truths cannot be understood."""


class ReviewFileError(PipelineError):
    """A file of marks cannot be read, or is none."""
