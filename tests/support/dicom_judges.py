"""Independent programs that judge DICOM files; a test skips itself where its judge is missing."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest

from cuda_cyclegan.io.volume import Volume

nibabel: Any = _nibabel

# Debian's dciodvfy of 2022 does not know SyntheticData, which the standard has since 2023.
TOO_NEW = "(0x0008,0x001c)"


def judge(name: str) -> str:
    """The program's path; skips the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; .ci/install-judges installs it on Debian")
    return found


def conformance_errors(path: Path) -> set[str]:
    """Return what dciodvfy calls errors, without the values they quote."""
    done = subprocess.run([judge("dciodvfy"), path], capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return {
        re.sub(r"<[^>]*>", "<>", line)
        for line in lines
        if line.startswith("Error") and TOO_NEW not in line
    }


def is_part_10(*paths: Path) -> bool:
    """Whether dcmftest and dcmdump read the file, or each of several, whole."""
    tests = ([judge("dcmftest"), *paths], [judge("dcmdump"), "-q", *paths])
    return all(
        subprocess.run(test, capture_output=True, check=False).returncode == 0 for test in tests
    )


def converted(folder: Path, into: Path) -> list[Any]:
    """The images that dcm2niix makes of a series, in the orientation closest to RAS."""
    into.mkdir()
    # No private scaling of one vendor, as the derived series has the standard's own.
    options = ["-b", "n", "-z", "n", "-p", "n", "-f", "%s_%e_%z"]
    command = [judge("dcm2niix"), *options, "-o", into, folder]
    subprocess.run(command, capture_output=True, check=True)
    return [nibabel.as_closest_canonical(nibabel.load(path)) for path in sorted(into.glob("*.nii"))]


def assert_converts_to(volume: Volume, folder: Path, into: Path) -> None:
    """Assert that dcm2niix makes one image of a series, and that it is this volume."""
    [image] = converted(folder, into)
    expected = canonical(volume.values(), volume.affine)
    np.testing.assert_allclose(image.affine, expected.affine, atol=1e-4)
    np.testing.assert_array_equal(image.get_fdata(), expected.get_fdata())


def canonical(values: "np.ndarray[Any, Any]", affine: "np.ndarray[Any, Any]") -> Any:
    """An image in the orientation closest to RAS."""
    return nibabel.as_closest_canonical(nibabel.Nifti1Image(values, affine))
