"""Check of execution providers before use: each computes one patch, and so does the CPU.

The patch has the extents that will be used: a provider that adds up a channel in one float32
accumulator is as accurate as fp32 can be in 32^3 voxels, and 3e-4 off in 128^3.
"""

from collections.abc import Generator
from contextlib import contextmanager
from math import inf

from .errors import DeviceUnavailableError
from .model.reference import reference_input, relative_error, tolerance
from .network.graph import Network, times
from .network.layers import FloatArray, Triple
from .onnxruntime.providers import open_provider_generator
from .onnxruntime.session import SessionGenerator, open_cpu_generator


@contextmanager
def open_checked_generator(
    network: Network, provider: str, extents: Triple
) -> Generator[SessionGenerator]:
    """Open a network on a provider whose result equals the CPU's within the rounding of fp32.

    extents: (D, H, W) of the patches to come, and of the checked one.

    Raises DeviceUnavailableError if the provider does not start or computes something else.
    """
    with open_provider_generator(network, provider) as generator:
        _check(network, generator, provider, extents)
        yield generator


def _check(network: Network, generator: SessionGenerator, provider: str, extents: Triple) -> None:
    patch = reference_input(network.graph.in_channels, extents)
    made = _made(generator, patch, provider)
    with open_cpu_generator(network) as cpu:
        right = cpu(patch)
    error = relative_error(made, right) if made.shape == right.shape else inf
    allowed = tolerance("fp32")
    if not error <= allowed:
        raise DeviceUnavailableError(
            f"Provider {provider} of ONNX Runtime differs from the CPU: the error on a patch of "
            f"{times(extents)} is {error:.1e}, but at most {allowed:.1e} is allowed; use setting "
            "device=cpu."
        )


def _made(generator: SessionGenerator, patch: FloatArray, provider: str) -> FloatArray:
    try:
        return generator(patch)
    except Exception as error:  # each provider's library raises what it likes
        why = " ".join(str(error).split())
        raise DeviceUnavailableError(
            f"Provider {provider} of ONNX Runtime failed on its first patch ({why}); use setting "
            "device=cpu."
        ) from error
