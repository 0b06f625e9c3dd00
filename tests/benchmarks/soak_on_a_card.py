"""Hundreds of small studies through one command: what its process holds must stay level.

    PYTHONPATH=tests python tests/benchmarks/soak_on_a_card.py

Host memory, device memory, descriptors and threads are sampled while the batch runs. Its second
half may hold no more than its first, besides `--slack` of host memory.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from support.bench_batches import make_scans, write_model
from support.bench_command import Observed, Sample, keep, options, translate

HELD: dict[str, Callable[[Sample], int]] = {
    "host_bytes": lambda sample: sample.resident,
    "device_bytes": lambda sample: sample.device,
    "descriptors": lambda sample: sample.descriptors,
    "threads": lambda sample: sample.threads,
}


def at_work(run: Observed) -> list[Sample]:
    """Samples between the first result and the last."""
    studies = run.report["totals"]["studies"]
    return [sample for sample in run.samples if 0 < sample.results < studies]


def held(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Medians and maxima of the quarters."""
    quarter = len(samples) // 4
    if quarter < 3:
        raise SystemExit(f"{len(samples)} samples are too few; take more studies")
    parts = [samples[n * quarter : (n + 1) * quarter] for n in range(4)]
    return {
        name: {
            f"{kind.__name__}_of_quarter_{number}": kind([value(s) for s in part])
            for number, part in enumerate(parts, 1)
            for kind in (median, max)
        }
        for name, value in HELD.items()
    }


def rises(figures: dict[str, dict[str, float]], slack: int) -> list[str]:
    """Return what is held more in the second half than in the first, by medians of quarters."""
    allowed = {"host_bytes": slack, "device_bytes": 0, "descriptors": 2, "threads": 2}
    found: list[str] = []
    for name, row in figures.items():
        quarters = [row[f"median_of_quarter_{number}"] for number in range(1, 5)]
        if max(quarters[2:]) > max(quarters[:2]) + allowed[name]:
            found.append(name)
    return found


def main() -> None:
    parser = options("soak_on_a_card", __doc__)
    parser.set_defaults(shape=(96, 96, 64), patch=(64, 64, 64), width=16)
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--every", type=float, default=0.1, help="seconds between samples")
    parser.add_argument("--slack", type=int, default=16, help="MiB of host memory")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as root:
        folder = Path(root)
        model = write_model(folder / "model.safetensors", asked.width, asked.blocks, asked.patch)
        scans = make_scans(folder / "scans", asked.studies, asked.shape, ".nii.gz")[0].parent
        run = translate(
            scans, model, folder / "results", "--device", asked.device, every=asked.every
        )
    samples = at_work(run)
    figures = held(samples)
    rising = rises(figures, asked.slack << 20)
    keep(
        {
            "what": (__doc__ or "").splitlines()[0],
            "studies": asked.studies,
            "volume": asked.shape,
            "patch": asked.patch,
            "network": f"ResNet of width {asked.width} with {asked.blocks} blocks",
            "seconds": round(run.seconds, 1),
            "samples": len(samples),
            "held": figures,
            "rising": rising,
        },
        asked.output,
    )
    if rising:
        raise SystemExit(f"rising: {', '.join(rising)}")


if __name__ == "__main__":
    main()
