"""A model: what it was trained for, and the network itself."""

from dataclasses import dataclass

from .card import ModelCard
from .graph import FloatArray, Network


@dataclass(frozen=True, slots=True)
class Model:
    """One generator with its card, as the product's own model file holds them.

    reference_input, reference_output: the stored patch pair, [1, C, D, H, W].
    sha256: hash of the model file, which names the model in manifests and reports.
    """

    card: ModelCard
    network: Network
    reference_input: FloatArray
    reference_output: FloatArray
    sha256: str
