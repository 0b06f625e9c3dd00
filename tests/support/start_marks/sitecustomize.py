"""Module on PYTHONPATH: processes of the command write their progress to the file $START_MARKS.

A line each: the process, what it came to, and seconds of the monotonic clock, which all share.
"""

import atexit
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

PRODUCT = "cuda_cyclegan"

BEFORE, AFTER = "before", "after"

MARKS: dict[str, list[tuple[str, str, str]]] = {
    "engine.probe.gpus": [
        ("_driver", AFTER, "driver started"),
        ("_retained", AFTER, "context ready"),
    ],
    "engine.model.model_file": [("decode_model", AFTER, "model read")],
    "engine.cpu.openvino": [
        ("OpenVino.compiled", BEFORE, "network to be compiled"),
        ("OpenVino.compiled", AFTER, "network compiled"),
        ("CompiledModel.into", BEFORE, "first patch begun"),
        ("CompiledModel.into", AFTER, "first patch computed"),
    ],
    "engine.cpu.session": [
        ("session", BEFORE, "network to be compiled"),
        ("session", AFTER, "network compiled"),
    ],
    "engine.cuda.patches.patch_generator": [("CudaGenerator.warm_up", AFTER, "program open")],
    "engine.cuda.volume.preparation": [
        ("Preparation.prepare", BEFORE, "memory asked for"),
        ("Preparation._placed", AFTER, "memory there"),
        ("Preparation.prepare", AFTER, "memory ready"),
    ],
    "engine.cuda.volume.streamed_volume": [
        ("StreamedVolume.run", BEFORE, "volume begun"),
        ("upload_voxels", AFTER, "volume brought in"),
        ("download_voxels", BEFORE, "all but the last pass queued"),
        ("download_voxels", AFTER, "volume taken out"),
    ],
    "engine.cuda.volume.held_memory": [
        ("_in_large_pages", BEFORE, "maps to be pinned"),
        ("_in_large_pages", AFTER, "maps pinned"),
        ("HeldMemory.__exit__", BEFORE, "memory to be given back"),
        ("HeldMemory._close_host", AFTER, "maps given back"),
        ("HeldMemory.__exit__", AFTER, "memory given back"),
    ],
    "io.formats.nifti": [("fill", BEFORE, "voxels asked for"), ("fill", AFTER, "voxels read")],
    "io.files.atomic": [
        ("flush", BEFORE, "first result written"),
        ("flush", AFTER, "first result flushed"),
    ],
    "pipelines.results.storing": [
        ("Store.put", BEFORE, "first study to be stored"),
    ],
    "pipelines.translate": [("run_job", BEFORE, "job known"), ("run_job", AFTER, "batch over")],
    "pipelines.run.process": [("launch", BEFORE, "worker launched")],
    "pipelines.run.pipe_worker": [
        ("PipeWorker.__call__", BEFORE, "job known"),
        ("PipeWorker.__call__", AFTER, "batch over"),
    ],
    "pipelines.run.study_run": [
        ("StudyRun.load", BEFORE, "first study asked for"),
        ("StudyRun.load", AFTER, "first study read"),
        ("StudyRun.infer", BEFORE, "first study begun"),
        ("StudyRun.infer", AFTER, "first study computed"),
        ("StudyRun.store", AFTER, "first study stored"),
    ],
}
"""Functions by module, and what it means when each was first called, or had returned."""

LAST = {"first study computed": "last study computed", "first study stored": "last study stored"}
"""Marks of each call, so that the last one is the time when all was done."""


def tell(what: str) -> None:
    line = f"{os.getpid()}\t{what}\t{time.monotonic():.4f}\n"
    with open(os.environ["START_MARKS"], "a") as file:  # noqa: PTH123
        file.write(line)


def reported(function: Callable[..., Any], marks: Sequence[tuple[str, str]]) -> Callable[..., Any]:
    seen = set[str]()

    def tell_once(when: str) -> None:
        for of, what in marks:
            if of == when and what not in seen:
                seen.add(what)
                tell(what)
            if of == when and what in LAST:
                tell(LAST[what])

    def call(*arguments: Any, **named: Any) -> Any:
        tell_once(BEFORE)
        try:
            return function(*arguments, **named)
        finally:
            tell_once(AFTER)

    return call


def mark(module: ModuleType, marks: Sequence[tuple[str, str, str]]) -> None:
    for name in dict.fromkeys(name for name, _, _ in marks):
        *owners, attribute = name.split(".")
        owner: Any = module
        for each in owners:
            owner = getattr(owner, each)
        own = [(when, what) for named, when, what in marks if named == name]
        setattr(owner, attribute, reported(getattr(owner, attribute), own))


class Marker:
    """Finder of the modules to be marked, which marks them when loaded."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        package, _, rest = name.partition(".")
        if package != PRODUCT or rest not in MARKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_marked(module: ModuleType) -> None:
            load(module)
            mark(module, MARKS[rest])

        spec.loader.exec_module = load_marked  # type: ignore[method-assign]
        return spec


def leave(status: int) -> None:
    tell("leaves")
    leave_at_once(status)


if os.environ.get("START_MARKS") and PRODUCT in " ".join(sys.orig_argv):
    leave_at_once = os._exit
    os._exit = leave  # type: ignore[assignment]
    atexit.register(tell, "leaves")
    sys.meta_path.insert(0, Marker)  # type: ignore[arg-type]
    tell("Python started")
