"""Patients with a scan of each of two contrasts, and a model that takes both."""

import json
from pathlib import Path
from typing import Any

import nibabel as _nibabel
from support.batch_world import mixing_model, scan
from support.queue_world import QueueWorld

nibabel: Any = _nibabel


NAMES = [f"sub-{number:02}/sub-{number:02}_T1w.nii.gz" for number in (1, 2)]
"""Names of their studies."""


class Clinic(QueueWorld):
    """Two patients with a T1 and a T2 each, and a model of T1 + 2 T2."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        mixing_model(self.model)
        self.report = folder / "report.json"
        for number in (1, 2):
            scan(self.file(number, "T1w"), 10 * number)
            scan(self.file(number, "T2w"), 10 * number + 1)

    def file(self, number: int, suffix: str) -> Path:
        return self.inputs / f"sub-{number:02}" / f"sub-{number:02}_{suffix}.nii.gz"

    def result(self, number: int, suffix: str = "T1w") -> Path:
        return self.output / self.file(number, suffix).relative_to(self.inputs)

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in json.loads(self.report.read_text())["studies"]}

    def translate(self, *options: str, status: int = 0) -> dict[str, dict[str, Any]]:
        """Rows of this run alone."""
        self.report.unlink(missing_ok=True)
        done = self.command("translate", "--report", str(self.report), *options)
        assert done.exit_code == status, done.output
        return self.rows()

    def expected(self, number: int) -> Any:
        first, second = (values(self.file(number, each)) for each in ("T1w", "T2w"))
        return first + 2 * second

    def makes_two(self) -> None:
        """Make the model return the sum and the difference from now on."""
        mixing_model(self.model, ((1, 1), (1, -1)), targets=("CT", "PET"))


def values(file: Path) -> Any:
    """Return the values of all voxels of a file."""
    return nibabel.load(file).get_fdata()
