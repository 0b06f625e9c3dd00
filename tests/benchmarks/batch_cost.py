"""Cost of one more study in a batch on a GPU: time, processor time, and how busy the GPU is.

    PYTHONPATH=tests python tests/benchmarks/batch_cost.py [--few 30 --many 180 --rounds 3]

Studies of 256x256x180 int16 with and without compression, a 9-block ResNet of width 32, patches of
128^3 and whole volumes. Each round translates `few` and then `many` studies; the cost of one is the
difference over the difference in studies, so start and end of the command cancel. Busy: the
program's own share of time in the network in the larger batch, and the utilisation that NVML
reported in the middle half of it. Medians over the rounds.
"""

import resource
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import pynvml
from support.bench_batches import make_scans, write_model
from support.bench_command import Observed, keep, options, translate

MODES = {"patches": ("--overlap", "0.25"), "volume": ("--inference", "volume")}
FORMATS = (".nii", ".nii.gz")
EVERY = 0.05


class Utilisation:
    """Samples of a GPU's utilisation, with their times; a context manager that takes them."""

    def __init__(self, index: int) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self._samples: list[tuple[float, int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "Utilisation":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(EVERY):
            rates = pynvml.nvmlDeviceGetUtilizationRates(self._handle)
            self._samples.append((time.monotonic(), int(rates.gpu)))

    def between(self, start: float, stop: float) -> float:
        """Return the mean share of time in which a kernel ran."""
        return mean(rate for at, rate in self._samples if start <= at <= stop) / 100


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def observed(scans: Path, root: Path, *arguments: str) -> tuple[Observed, float, float]:
    """Translate a folder; return the run, its processor seconds, and the GPU's utilisation."""
    for earlier in (root / "out", root / ".out.cuda-cyclegan"):
        shutil.rmtree(earlier, ignore_errors=True)
    before, begin = processor_seconds(), time.monotonic()
    with Utilisation(0) as busy:
        run = translate(scans, root / "model.safetensors", root / "out", *arguments)
    seconds, length = processor_seconds() - before, time.monotonic() - begin
    ends = run.ends()
    middle = (ends[-1] - ends[0]) / 4
    stop = begin + length - middle
    return run, seconds, busy.between(stop - 2 * middle, stop)


def main() -> None:
    parser = options("batch_cost", __doc__)
    parser.add_argument("--few", type=int, default=30)
    parser.add_argument("--many", type=int, default=180)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[Any]]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        root = Path(made)
        write_model(root / "model.safetensors", arguments.width, arguments.blocks, arguments.patch)
        for suffix in FORMATS:
            for count in (arguments.few, arguments.many):
                make_scans(root / f"{count}{suffix}", count, arguments.shape, suffix)
        for turn in range(arguments.rounds + 1):  # the first one fills the caches
            for mode in arguments.modes:
                for suffix in FORMATS:
                    row = cost(root, mode, suffix, arguments)
                    print(turn, mode, suffix, row, file=sys.stderr, flush=True)
                    rows = found.setdefault(f"{mode}, {suffix}", {})
                    for name, value in row.items() if turn else ():
                        rows.setdefault(name, []).append(value)
    keep(
        {
            "what": (__doc__ or "").splitlines()[0],
            "studies": [arguments.few, arguments.many],
            "volume": arguments.shape,
            "network": f"ResNet of width {arguments.width} with {arguments.blocks} blocks",
            "medians": {
                case: {name: round(median(values), 4) for name, values in rows.items()}
                for case, rows in found.items()
            },
            "rounds": found,
        },
        arguments.output,
    )


def cost(root: Path, mode: str, suffix: str, arguments: Any) -> dict[str, float]:
    """Return the cost of one more study of a mode and format."""
    device = "--device", arguments.device, "--precision", "fp16", "--tune", "full"
    runs = [
        observed(root / f"{count}{suffix}", root, *device, *MODES[mode])
        for count in (arguments.few, arguments.many)
    ]
    (few, few_processor, _), (many, many_processor, utilisation) = runs
    more = arguments.many - arguments.few
    stages = many.report["totals"]["stages"]
    return {
        "milliseconds": round(1000 * (many.seconds - few.seconds) / more, 2),
        "processor_seconds": round((many_processor - few_processor) / more, 4),
        "busy_by_program": round(many.report["use"]["computing_share"], 3),
        "busy_by_nvml": round(utilisation, 3),
        **{f"{name}_ms": round(1000 * s / arguments.many, 2) for name, s in stages.items()},
    }


if __name__ == "__main__":
    main()
