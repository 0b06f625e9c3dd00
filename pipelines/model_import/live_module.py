"""A live PyTorch module written as the files of an import: its program, and a reference."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...engine.errors import CheckpointError
from ...engine.network.layers import FloatArray, Triple
from ..errors import MissingLibraryError, SettingsError

_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class WrittenModule:
    """Files made from a module.

    program: torch.export archive. reference: a patch and the module's output for it. patch:
    extents of the patch.
    """

    program: Path
    reference: Path
    patch: Triple


def write_module(module: Any, example: Any, folder: Path) -> WrittenModule:
    """Export a module as it is, in train or eval mode, and compute its reference in float32.

    module: torch.nn.Module on the CPU in float32. example: tensor or array [1, C, D, H, W]; one
    without structure, such as zeros, is replaced by noise. folder: receives the files.

    Raises SettingsError for other arguments, MissingLibraryError without PyTorch, CheckpointError
    if PyTorch cannot run or export the module.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingLibraryError(
            "PyTorch is not installed here; call from_torch in the training environment, or save "
            "the module with torch.export there and import the file."
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise SettingsError(
            f"Argument module must be a torch.nn.Module, not {type(module).__name__}.", "module"
        )
    tensors = (*module.parameters(), *module.buffers())
    halves = (torch.float16, torch.bfloat16)
    if any(one.device.type != "cpu" or one.dtype in halves for one in tensors):
        raise SettingsError(
            "Argument module must be on the CPU in float32, where the reference is computed; pass "
            "module.cpu().float().",
            "module",
        )
    patch = _patch(example)
    source = torch.tensor(patch)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        output = _computed(module, source)
        program = _program(module, source)
        path = folder / f"{type(module).__name__[:80]}.pt2"
        torch.export.save(program, path)
    reference = folder / "reference.npz"
    np.savez(reference, input=patch, output=output)
    _, _, depth, height, width = patch.shape
    return WrittenModule(path, reference, (depth, height, width))


def _patch(example: Any) -> FloatArray:
    """Return the example as an array with structure."""
    import torch

    try:
        patch = torch.as_tensor(example, dtype=torch.float32, device="cpu").detach().numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingsError(
            "Argument example must be a tensor or an array [1, C, D, H, W].", "example"
        ) from error
    if patch.ndim != 5 or patch.shape[0] != 1 or not patch.size or not np.isfinite(patch).all():
        raise SettingsError(
            f"Argument example must be finite numbers [1, C, D, H, W], not {list(patch.shape)}.",
            "example",
        )
    if np.ptp(patch) > 0:
        return patch
    return np.random.default_rng(0).uniform(-1, 1, patch.shape).astype(np.float32)


def _computed(module: Any, source: Any) -> FloatArray:
    """Return the output of a module."""
    try:
        return module(source).numpy().astype(np.float32)
    except Exception as error:  # the module's code may raise anything
        raise CheckpointError(
            f"The module returns no tensor for the example ({_reason(error)}); pass the generator "
            "alone, in eval mode, and an example that it accepts."
        ) from error


def _program(module: Any, source: Any) -> Any:
    """Return the exported program, for patches of other sizes too if PyTorch can export that."""
    import torch

    extents = dict.fromkeys((2, 3, 4), torch.export.Dim.DYNAMIC)
    try:
        return torch.export.export(module, (source,), dynamic_shapes=(extents,))
    except Exception:  # code that depends on the extents, of which exporters say many things
        pass
    try:
        return torch.export.export(module, (source,))
    except Exception as error:
        raise CheckpointError(f"PyTorch cannot export the module ({_reason(error)}).") from error


def _reason(error: Exception) -> str:
    """Return the first line of an error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:_LONGEST_REASON].rstrip(".")
