"""Waits of a study's host work for the interpreter's lock, next to a busy thread.

    PYTHONPATH=tests python tests/benchmarks/lock_waits.py [--studies N]

Each call that releases the lock, such as a step of NumPy or a system call, takes it again
afterwards. Beside a thread that is busy in Python it then sleeps once, which the kernel counts as a
voluntary switch of the thread. In a batch on many cores these waits cost more than the work itself.
One study at a time is read, prepared, copied in the network's place, measured and written; counts
are of the calling thread alone, without helpers, and include those of the functions it calls.
"""

import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from typing import Any

from batch_on_a_card import Case, Copying
from support.bench_batches import make_scans, write_model
from support.bench_command import keep, options

from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.io.formats import nifti_writing
from cuda_cyclegan.pipelines.host.memory import PeakMeters
from cuda_cyclegan.pipelines.results import file_states
from cuda_cyclegan.pipelines.results.storing import Store
from cuda_cyclegan.pipelines.run.pipeline import Concurrency
from cuda_cyclegan.pipelines.run.study_run import StudyRun
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.study import prepare, translator
from cuda_cyclegan.pipelines.study.translator import StudyTranslator

COUNTED: tuple[tuple[Any, str], ...] = (
    (StudyRun, "load"),
    (StudyTranslator, "read"),
    (StudyTranslator, "prepare"),
    (prepare, "fit_map"),
    (file_states, "_sha256"),
    (PeakMeters, "start"),
    (PeakMeters, "finish"),
    (StudyTranslator, "finish"),
    (translator, "measure"),
    (Store, "put"),
    (nifti_writing, "write_volumes"),
)


def waits() -> int:
    return getrusage(RUSAGE_THREAD).ru_nvcsw


def count(owner: Any, name: str, found: dict[str, int]) -> None:
    """Replace a function by one that also adds its waits to `found`."""
    function = getattr(owner, name)

    @wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        before = waits()
        try:
            return function(*arguments, **named)
        finally:
            found[f"{owner.__name__.rpartition('.')[2]}.{name}"] += waits() - before

    setattr(owner, name, counted)


@contextmanager
def busy_thread() -> Generator[None]:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main() -> None:
    parser = options("lock_waits", __doc__)
    parser.add_argument("--studies", type=int, default=16)
    arguments = parser.parse_args()
    found: dict[str, int] = defaultdict(int)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        root = Path(made)
        model = load_model(write_model(root / "model.safetensors", 4, 1, arguments.patch))
        scans = make_scans(root / "scans", arguments.studies, arguments.shape, ".nii")
        (root / "results").mkdir()
        settings = TranslateOptions(arguments.patch, precision="fp32").resolved()
        alone = Concurrency(host_bytes=8 << 30, readers=1, networks=1, writers=1)
        case = Case(model, settings, alone, scans, root / "results")
        network = Copying(model.network.graph)
        case.run(network, "warm-up")
        for owner, name in COUNTED:
            count(owner, name, found)
        with busy_thread():
            case.run(network, "counted")
    keep(
        {
            "what": (__doc__ or "").splitlines()[0],
            "studies": arguments.studies,
            "volume": arguments.shape,
            "waits of a study": {
                name: round(number / arguments.studies, 1) for name, number in found.items()
            },
        },
        arguments.output,
    )


if __name__ == "__main__":
    main()
