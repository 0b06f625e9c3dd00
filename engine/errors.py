"""Errors of the engine, each a sentence for the user.

EngineError
├── CheckpointError        a weights file cannot be imported: hostile, unknown or ambiguous
├── ModelFileError         a model file is damaged, of another version, or fails its own proof
├── PatchShapeError        a patch does not fit the network
└── DeviceUnavailableError a device or an installed library is missing
"""


class EngineError(Exception):
    """Base of all engine errors; the message says what, where and what to do."""


class CheckpointError(EngineError):
    """A training checkpoint cannot become a model: refused, not understood, or not unambiguous."""


class ModelFileError(EngineError):
    """A model file is damaged, was made by a newer version, or does not pass its own check."""


class PatchShapeError(EngineError):
    """A patch's extents do not fit the network's stride, kernels or padding."""


class DeviceUnavailableError(EngineError):
    """The asked-for device, or a library it needs, is not on this machine."""
