"""Messages about scans that cannot be read: one sentence that names the file and the cause."""

import errno
import os
from pathlib import Path

import nibabel
import pytest

from cuda_cyclegan.io.errors import UnreadableScanError
from cuda_cyclegan.io.files.streams import TooManyBytesError
from cuda_cyclegan.io.reading import causes_named


def of_system(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/scans/a.nii")


CAUSES = {
    "is truncated": EOFError(),
    "is damaged: the file is longer than its header states": TooManyBytesError(),
    "does not fit into free memory": MemoryError(),
    "has a damaged header (no dims)": nibabel.spatialimages.HeaderDataError("no dims"),
    "is missing; check the path": of_system(errno.ENOENT),
    "cannot be read: permission denied": of_system(errno.EACCES),
    "is a folder, not a scan file": of_system(errno.EISDIR),
    "cannot be read: Input/output error": of_system(errno.EIO),
    "is damaged (odd bytes)": OSError("odd bytes"),
}


@pytest.mark.parametrize("reported", CAUSES)
def test_a_cause_is_named_in_a_sentence(reported: str) -> None:
    with pytest.raises(UnreadableScanError) as error, causes_named(Path("/scans/a.nii")):
        raise CAUSES[reported]
    words = str(error.value)
    assert words.startswith(f"/scans/a.nii {reported}")
    assert words.endswith(".")
