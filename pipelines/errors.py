"""Errors of the pipelines, each a sentence for the user."""


class PipelineError(Exception):
    """Base of all pipeline errors; the message says what, where and what to do."""


class PreparationError(PipelineError):
    """This volume cannot be brought into, or back from, the model's world; the batch goes on."""
