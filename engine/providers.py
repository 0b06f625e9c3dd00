"""Execution providers of ONNX Runtime: those installed, and a network on one of them, checked
before use: it computes one patch, and so does the CPU.

The patch has the extents that will be used: a provider that adds up a channel in one float32
accumulator is as accurate as fp32 can be in 32^3 voxels, and 3e-4 off in 128^3.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from math import inf
from typing import Any

from .cores import usable_cores
from .cpu.session import (
    CPU,
    SessionGenerator,
    onnxruntime,
    open_cpu_generator,
    session,
    session_options,
)
from .errors import DeviceUnavailableError
from .model.reference import reference_input, relative_error, tolerance
from .network.graph import Network, times
from .network.layers import FloatArray, Triple

_SUFFIX = "ExecutionProvider"

_ELSEWHERE = frozenset({"Azure"})
"""Providers that send patches to a service on another machine, which are not used for scans."""

_FOR_FP32 = {"CUDA": {"use_tf32": "0"}}
"""Options without which a provider multiplies in less than fp32."""


def installed_providers() -> tuple[str, ...]:
    """Return names such as CoreML, without "ExecutionProvider", in ONNX Runtime's own order."""
    names = (name.removesuffix(_SUFFIX) for name in onnxruntime().get_available_providers())
    return tuple(name for name in names if name not in _ELSEWHERE)


def check_installed(provider: str) -> None:
    """Raise DeviceUnavailableError unless ONNX Runtime has a provider of this name."""
    installed = installed_providers()
    if provider not in installed:
        raise DeviceUnavailableError(
            f"ONNX Runtime has no provider {provider} on this machine; it has "
            f"{', '.join(installed)}."
        )


@contextmanager
def open_provider_generator(network: Network, provider: str) -> Generator[SessionGenerator]:
    """Open a network on a provider, in a session which ends with the `with` block.

    Operators that the provider does not compute are left to the CPU. Raises DeviceUnavailableError
    if it does not start or computes none.
    """
    from .cpu.onnx_model import to_onnx

    options = session_options(usable_cores())
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    name = provider + _SUFFIX
    providers = {name: _FOR_FP32.get(provider, {}), CPU: {}}
    try:
        running = session(to_onnx(network, exact_norms=True, by_columns=True), options, providers)
    except Exception as error:  # each provider's library raises what it likes
        raise DeviceUnavailableError(_unusable(provider, error)) from error
    words = f"{provider}{_share(running, provider)}, ONNX Runtime {onnxruntime().__version__}"
    with closing(SessionGenerator(network.graph, running, words)) as generator:
        yield generator


def _unusable(provider: str, error: Exception) -> str:
    why = " ".join(str(error).split())
    return (
        f"Provider {provider} of ONNX Runtime cannot run this network ({why}); use setting "
        "device=cpu."
    )


def _share(running: Any, provider: str) -> str:
    """Return how many operators a provider computes, as text; empty if ONNX Runtime does not report
    it.

    Raises DeviceUnavailableError if it computes none, which ONNX Runtime itself ignores.
    """
    name = provider + _SUFFIX
    if name not in running.get_providers():
        raise DeviceUnavailableError(
            f"Provider {provider} of ONNX Runtime does not start on this machine; update its "
            "driver and libraries, or use setting device=cpu."
        )
    if not hasattr(running, "get_provider_graph_assignment_info"):
        return ""
    operators: Counter[str] = Counter()
    for part in running.get_provider_graph_assignment_info():
        operators[part.ep_name] += len(part.get_nodes())
    if not operators[name]:
        raise DeviceUnavailableError(
            f"Provider {provider} of ONNX Runtime supports no operator of this network; use "
            "setting device=cpu."
        )
    return f" for {operators[name]} of {operators.total()} operators"


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
    output = _output(generator, patch, provider)
    with open_cpu_generator(network) as cpu:
        right = cpu(patch)
    error = relative_error(output, right) if output.shape == right.shape else inf
    allowed = tolerance("fp32")
    if not error <= allowed:
        raise DeviceUnavailableError(
            f"Provider {provider} of ONNX Runtime differs from the CPU: the error on a patch of "
            f"{times(extents)} is {error:.1e}, but at most {allowed:.1e} is allowed; use setting "
            "device=cpu."
        )


def _output(generator: SessionGenerator, patch: FloatArray, provider: str) -> FloatArray:
    try:
        return generator(patch)
    except Exception as error:  # each provider's library raises what it likes
        why = " ".join(str(error).split())
        raise DeviceUnavailableError(
            f"Provider {provider} of ONNX Runtime failed on its first patch ({why}); use setting "
            "device=cpu."
        ) from error
