"""One, two and four cards on a batch that is all computing, through the command.

    PYTHONPATH=tests python tests/benchmarks/cards_scaling.py --devices cuda:0 cuda:0,1

Uncompressed studies, each of many patches, as many for each number of cards. "whole" counts the
seconds of the whole command, start-up of all processes too; "steady" the rate between two studies
in the middle of the batch.
"""

import tempfile
from pathlib import Path
from typing import Any

from support.bench_batches import make_scans, write_model
from support.bench_command import Observed, keep, options, translate


def measured(run: Observed, cards: int, edge: int) -> dict[str, Any]:
    use, studies = run.report["use"], run.report["totals"]["translated"]
    return {
        "cards": cards,
        "steady_studies_a_minute": round(60 * run.steady(edge * cards), 2),
        "whole_studies_a_minute": round(60 * studies / run.seconds, 2),
        "whole_seconds": round(run.seconds, 2),
        "seconds_to_first_result": round(run.ends()[0], 2),
        "seconds_of_batch": round(run.report["seconds"], 2),
        "seconds_at_work": round(use["wall_seconds"], 2),
        "workers": workers(run),
        "computing_share": round(use["computing_share"], 3),
        "stages": run.report["totals"]["stages"],
        "peak_bytes_of_holder": max(sample.resident for sample in run.samples),
    }


def workers(run: Observed) -> dict[str, dict[str, float]]:
    """Return when each worker first read, first and last computed, from the first work of any."""
    rows: dict[str, dict[str, float]] = {}
    for span in sorted(run.spans, key=lambda span: span["ts"]):
        row = rows.setdefault(span["track"].rpartition(": ")[0], {"reads": span["ts"] / 1e6})
        if span["name"] == "infer":
            row.setdefault("computes", span["ts"] / 1e6)
            row["has_computed"] = (span["ts"] + span["dur"]) / 1e6
    return {name: {k: round(v, 2) for k, v in row.items()} for name, row in rows.items()}


def main() -> None:
    parser = options("cards_scaling", __doc__)
    parser.add_argument("--studies", type=int, default=96)
    parser.add_argument("--edge", type=int, default=3, help="studies a card left out at both ends")
    parser.add_argument("--overlap", type=float, default=0.8)
    parser.add_argument("--devices", nargs="+", default=["cuda:0", "cuda:0,1", "cuda:0,1,2,3"])
    asked = parser.parse_args()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=asked.folder) as root:
        folder = Path(root)
        model = write_model(folder / "model.safetensors", asked.width, asked.blocks, asked.patch)
        scans, warm = folder / "scans", folder / "warm"
        make_scans(scans, asked.studies, asked.shape, ".nii")
        make_scans(warm, 1, asked.shape, ".nii")
        translate(warm, model, folder / "warmed", "--device", asked.devices[0])
        for number, devices in enumerate(asked.devices):
            options_of_run = ["--device", devices, "--overlap", str(asked.overlap), "--overwrite"]
            run = translate(scans, model, folder / "results", *options_of_run)
            rows[f"{number}: {devices}"] = measured(run, devices.count(",") + 1, asked.edge)
            print(devices, rows[f"{number}: {devices}"], flush=True)
    first = next(iter(rows.values()))
    for row in rows.values():
        for kind in ("steady", "whole"):
            name = f"{kind}_studies_a_minute"
            row[f"{kind}_times_one_card"] = round(row[name] / first[name], 2)
    keep(
        {
            "what": (__doc__ or "").splitlines()[0],
            "studies": asked.studies,
            "volume": asked.shape,
            "patch": asked.patch,
            "overlap": asked.overlap,
            "network": f"ResNet of width {asked.width} with {asked.blocks} blocks",
            "targets": {"2 cards": ">= 1.8", "4 cards": ">= 3.4"},
            "runs": rows,
        },
        asked.output,
    )


if __name__ == "__main__":
    main()
