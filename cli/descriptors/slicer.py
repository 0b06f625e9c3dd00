"""Command-line module of 3D Slicer: its description in XML, and the program that Slicer starts.

Format: the XML of the Slicer Execution Model.
"""

import shlex
import sys
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from ...pipelines.program import program_version
from .parameters import CommandParameter, parameters_of

_GROUPS = {
    "Model and images": ("model", "inputs", "output"),
    "Scan": ("any_contrast", "allow_synthetic", "nan_to"),
    "Result": ("inference", "overlap", "blend", "output_type", "verify"),
    "Speed": ("device", "precision", "patch", "vram_limit", "threads", "batch"),
}
"""Options of `translate` that concern one scan and one result, by section of the module."""

_IMAGES = {"inputs": ("input", "Input volume"), "output": ("output", "Output volume")}
"""Channel and label of the parameters that Slicer passes as files."""


def module_xml(command: Any) -> str:
    """Return the description of a module that runs `translate`. command: that command."""
    parameters = {each.name: each for each in parameters_of(command)}
    root = Element("executable")
    _texts(
        root,
        category="Filtering",
        title="cuda-cyclegan",
        description="Translate a volume with a trained 3D generator. The result is synthetic and "
        "not for diagnosis.",
        version=program_version(),
        license="Apache-2.0",
        contributor="The cuda-cyclegan maintainers",
    )
    for label, names in _GROUPS.items():
        advanced = {} if label == "Model and images" else {"advanced": "true"}
        group = SubElement(root, "parameters", advanced)
        _texts(group, label=label, description=f"{label}: options of cuda-cyclegan translate.")
        for name in names:
            _add(group, parameters[name])
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _add(group: Element, parameter: CommandParameter) -> None:
    """Add a parameter. One without a default is a text, as Slicer omits an empty text only."""
    stated = parameter.default is not None
    kinds = {"flag": "boolean", "path": "file"}
    if stated:
        kinds |= {"whole number": "integer", "number": "float"}
    tag = kinds.get(parameter.kind, "string")
    if parameter.words and stated:
        tag = "string-enumeration"
    attributes: dict[str, str] = {}
    channel, label = _IMAGES.get(parameter.name, ("", parameter.flag.lstrip("-")))
    if channel:
        tag, attributes = "image", {"type": "scalar", "fileExtensions": ".nrrd"}
    element = SubElement(group, tag, attributes)
    words = f" One of {', '.join(parameter.words)}." if parameter.words and not stated else ""
    _texts(element, name=parameter.name, label=label, description=f"{parameter.help}{words}")
    if parameter.flag:
        _texts(element, longflag=parameter.flag)
    else:
        _texts(element, index="0")
    if channel or tag == "file":
        _texts(element, channel=channel or "input")
    if stated:
        value = parameter.default
        _texts(element, default=str(value).lower() if isinstance(value, bool) else str(value))
    if tag == "string-enumeration":
        for word in parameter.words:
            SubElement(element, "element").text = word
    if tag in ("integer", "float") and parameter.least is not None:
        limits = SubElement(element, "constraints")
        _texts(limits, minimum=f"{parameter.least:g}", step="1")


def _texts(parent: Element, **texts: str) -> None:
    for name, text in texts.items():
        SubElement(parent, name).text = text


def launcher() -> tuple[str, str]:
    """Return the suffix and the text of the program that Slicer starts.

    It answers `--xml`, and leaves the variables of Slicer's own Python and libraries behind.
    """
    if sys.platform == "win32":
        return ".bat", (
            "@echo off\r\n"
            'if "%~1"=="--xml" (type "%~dpn0.xml" & exit /b)\r\n'
            "set PYTHONHOME=\r\nset PYTHONPATH=\r\n"
            f'"{sys.executable}" -m cuda_cyclegan translate --filter-progress %*\r\n'
        )
    return "", (
        "#!/bin/sh\n"
        'if [ "$1" = --xml ]; then exec cat "$0.xml"; fi\n'
        "unset PYTHONHOME PYTHONPATH LD_LIBRARY_PATH DYLD_LIBRARY_PATH\n"
        f"exec {shlex.quote(sys.executable)} -m cuda_cyclegan translate --filter-progress "
        '"$@"\n'
    )
