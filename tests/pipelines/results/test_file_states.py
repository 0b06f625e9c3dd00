"""Hashes in reports: those that sha256sum gives, whatever files are called."""

import hashlib
import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.pipelines.results.file_states import FileState, content_of

CONTENTS = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


def states(contents: list[bytes]) -> list[FileState]:
    return [
        FileState(f"{at}", len(content), 0, 0, hashlib.sha256(content).hexdigest())
        for at, content in enumerate(contents)
    ]


@given(contents=CONTENTS, order=st.randoms())
def test_neither_names_nor_order_count(contents: list[bytes], order: st.DataObject) -> None:
    made = content_of(states(contents))
    order.shuffle(contents)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    assert content_of(states(contents)) == made


@given(CONTENTS)
def test_another_byte_is_another_hash(contents: list[bytes]) -> None:
    one, other = content_of(states(contents)), content_of(states([*contents[1:], b"x" * 41]))
    assert one
    assert other
    assert one.sha256 != other.sha256


def test_the_script_in_the_documentation_gives_the_same(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "report-json.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith("sha256sum ")]
    folder = tmp_path / line.split()[1].removesuffix("/*")
    folder.mkdir(parents=True)
    contents = [bytes([at]) * 100 for at in range(12)]
    for at, content in enumerate(contents):
        (folder / f"{at} of 12.dcm").write_bytes(content)
    reported = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, check=True)
    made = content_of(states(contents))
    assert made
    assert reported.stdout.split()[0].decode() == made.sha256
    assert (made.files, made.bytes) == (12, 1200)


def test_no_files_have_no_hash() -> None:
    assert content_of(()) is None
