"""Batch reports that nobody had to translate for."""

import json
from pathlib import Path

from cuda_cyclegan.pipelines.host.memory import PeakMemory
from cuda_cyclegan.pipelines.report.codec import to_json
from cuda_cyclegan.pipelines.report.report import BatchReport, Failure, ModelName, StudyReport, Use
from cuda_cyclegan.pipelines.settings import TranslateOptions


def row(name: str, seconds: float) -> StudyReport:
    """A study that was translated, half of its time in the network."""
    return StudyReport(
        name=name,
        source=Path("scans") / name,
        output=Path("results") / name,
        status="translated",
        seconds=seconds,
        stages={"read": seconds / 4, "infer": seconds / 2, "write": seconds / 4},
        voxels=1000,
        tiles=8,
        peak_memory=PeakMemory(300 << 20, of_run=False),
    )


def failed(name: str, reason: str) -> StudyReport:
    """A study that could not be read."""
    return StudyReport(
        name=name,
        source=Path("scans") / name,
        output=Path("results") / name,
        status="failed",
        failure=Failure("unreadable", reason, "read"),
    )


BATCH = BatchReport(
    model=ModelName("T1 to T2", Path("model.safetensors"), "0" * 64),
    options=TranslateOptions(
        (16, 16, 16), overlap=0.25, blend="gaussian", precision="fp32", inference="patches"
    ),
    device="numpy",
    output=Path("results"),
    started="2026-01-02T03:04:05+00:00",
    seconds=10.0,
    use=Use(wall=10.0, busy=10.0, computing=5.0, devices=1),
    studies=(row("a.nii", 4.0), row("b.nii", 6.0)),
    skipped=(),
)


def written(report: BatchReport, file: Path) -> Path:
    """The report as `translate --report` stores it."""
    file.write_text(json.dumps(to_json(report), indent=2) + "\n")
    return file
