"""Errors that no code foresees concern one file of a search, and not the others."""

import json
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import scan
from support.dicom_phantoms import Phantom
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.io.dicom import headers
from cuda_cyclegan.io.formats.nifti import Nifti

nibabel: Any = _nibabel
REALS = ("vox_offset", "scl_slope", "scl_inter", "quatern_b", "qoffset_x", "pixdim", "srow_x")
NUMBERS = (float("nan"), float("inf"), -float("inf"), -352.0, 0.0, 3e38)
pytestmark = pytest.mark.filterwarnings("ignore:::nibabel")  # as the program does


def discovered(folder: Path) -> dict[str, str | None]:
    """Files and why each is not translated."""
    done = CliRunner().invoke(app, ["discover", str(folder), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    found = json.loads(done.stdout)
    rows = [*found["files"], *found["skipped"], *found["series"]]
    return {Path(row.get("path") or row["folder"]).name: row.get("reason") for row in rows}


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_no_number_of_a_header_ends_a_search(tmp_path: Path, kind: Any) -> None:
    image = kind(np.arange(60, dtype=np.int16).reshape(3, 4, 5), np.eye(4))
    image.set_qform(np.eye(4), 1)
    content = image.to_bytes()
    fields = [field for field in REALS if image.header[field].dtype.kind == "f"]
    for field in fields:
        for number in NUMBERS:
            header = image.header.copy()
            header[field] = number
            size = header.sizeof_hdr
            path = tmp_path / f"{field} {number}.nii"
            path.write_bytes(header.binaryblock + content[size:])
    scan(tmp_path / "sound.nii")
    found = discovered(tmp_path)
    assert len(found) == len(fields) * len(NUMBERS) + 1
    assert found["sound.nii"] is None
    if "vox_offset" in fields:
        assert "its voxels start at byte -inf" in str(found["vox_offset -inf.nii"])
    assert not [reason for reason in found.values() if "bug" in str(reason)]


@pytest.mark.parametrize("method", ["read_grid", "other_files", "missing_file"])
def test_an_unforeseen_error_is_of_its_file(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.nii", "b.nii"):
        scan(tmp_path / name)
    sound = getattr(Nifti, method)

    def broken(self: Nifti, path: Any, *others: Any) -> Any:
        if "a.nii" in str(path):
            raise RuntimeError("nobody thought of it")
        return sound(self, path, *others)

    monkeypatch.setattr(Nifti, method, broken)
    found = discovered(tmp_path)
    assert found["b.nii"] is None
    assert "RuntimeError: nobody thought of it; this looks like a bug" in str(found["a.nii"])


def test_an_unforeseen_error_is_of_its_dicom_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(tmp_path / "b.nii")
    first, *_ = Phantom("MR").write(tmp_path / "series")
    sound = headers._read

    def broken(path: Path, *others: Any) -> Any:
        if path == first:
            raise RuntimeError("nobody thought of it")
        return sound(path, *others)

    monkeypatch.setattr(headers, "_read", broken)
    found = discovered(tmp_path)
    assert found["b.nii"] is None
    assert "this looks like a bug" in str(found[first.name])
