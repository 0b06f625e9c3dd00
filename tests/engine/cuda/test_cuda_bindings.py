"""The installed cuda-bindings, of CUDA 12 or 13, take and give what the engine thinks they do."""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.driver_in_memory import needs_compiler, output_of

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.cuda import driver, nvrtc


@cache
def trees() -> list[ast.Module]:
    """Modules of the engine that speak of one of the libraries."""
    texts = (path.read_text() for path in Path(nvrtc.__file__).parents[1].rglob("*.py"))
    return [ast.parse(text) for text in texts if re.search(r"\b(driver|nvrtc)\b", text)]


def dotted(node: ast.expr) -> str | None:
    """A name and its attributes as they are written; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return None


def paths_in(function: ast.AST, library: str) -> Iterator[str]:
    """Yield the names that a function uses of a library, also under its own name for an
    enumeration.
    """
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    own = {str(dotted(node.targets[0])): dotted(node.value) for node in assigned}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and (path := dotted(node)):
            first, _, rest = path.partition(".")
            path = f"{own.get(first) or first}.{rest}"
            if path.startswith(f"{library}."):
                yield path.removeprefix(f"{library}.")


@cache
def paths_of(library: str) -> set[str]:
    functions = [
        node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    ]
    return {path for function in functions for path in paths_in(function, library)}


def found(library: str, path: str) -> Any:
    place = import_module(f"cuda.bindings.{library}")
    for name in path.split("."):
        place = getattr(place, name)
    return place


@pytest.mark.parametrize(("library", "fewest"), [("driver", 50), ("nvrtc", 12)])
def test_all_names_are_there(library: str, fewest: int) -> None:
    paths = paths_of(library)
    assert len(paths) >= fewest
    for path in paths:
        found(library, path)


def test_names_behind_an_own_name_are_found() -> None:
    assert "CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR" in paths_of("driver")


def calls() -> Iterator[tuple[str, list[ast.expr]]]:
    """Functions of both libraries with the arguments that they are given, as they are written."""
    for node in (node for tree in trees() for node in ast.walk(tree)):
        if not isinstance(node, ast.Call):
            continue
        function, arguments = dotted(node.func), node.args
        if function in ("call", "_call") and arguments:
            function, arguments = dotted(arguments[0]), arguments[1:]
        if function and function.startswith(("driver.cu", "nvrtc.nvrtc")):
            yield function, arguments


def test_all_functions_take_as_many_arguments() -> None:
    checked = 0
    for function, arguments in calls():
        library, _, name = function.partition(".")
        if not any(isinstance(argument, ast.Starred) for argument in arguments):
            parameters = inspect.signature(found(library, name)).parameters
            assert len(arguments) == len(parameters), function
            checked += 1
    assert checked > 40


def test_all_errors_that_end_a_process_are_known() -> None:
    """The header of the installed CUDA states which errors do."""
    text = (nvrtc.headers() / "cuda.h").read_text()
    said = re.findall(r"/\*\*((?:(?!\*/).)*)\*/\s*CUDA_ERROR_(\w+)\s*=", text, re.DOTALL)
    plain = {name: re.sub(r"[\s*]+", " ", words) for words, name in said}
    ending = {name for name, words in plain.items() if "must be terminated" in words}
    assert "ILLEGAL_ADDRESS" in ending
    assert ending <= set(driver._STICKY)


@needs_compiler
def test_arguments_and_results_have_the_form_that_the_engine_expects(tmp_path: Path) -> None:
    """Values pass the bindings to a driver in host memory and must arrive where they belong."""
    called = json.loads(output_of(tmp_path, "support.driver_calls"))
    assert set(called) == {path for path in paths_of("driver") if path.startswith("cu")}
