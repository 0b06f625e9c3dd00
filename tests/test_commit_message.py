"""`.ci/commit-message` takes messages of the form that CONTRIBUTING.md shows, and no others."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "commit-message"
GOOD = {
    "subject": "docs: build a site",
    "several areas": "engine, host: say which limit was met",
    "subject of 72 characters": f"io: {'ä' * 68}",
    "body": f"io: read less\n\n{'word ' * 14}\n\nMore.\n",
    "long word": f"io: read less\n\nhttps://example.org/{'x' * 80}",
    "merge": f"Merge branch {'names ' * 14}",
    "comments": f"\nio: read less\n# {'x ' * 80}\n# {'-' * 24} >8 {'-' * 24}\n{'+ ' * 80}",
}
BAD = {
    "empty": ("# a comment\n", "is not"),
    "no area": ("Read less", "is not"),
    "capital area": ("IO: read less", "is not"),
    "no space": ("io:read less", "is not"),
    "full stop": ("io: read less.", "without a full stop"),
    "subject of 73 characters": (f"io: {'ä' * 69}", "73 characters"),
    "no blank line": ("io: read less\nbecause", "not blank"),
    "wide body": (f"io: read less\n\n{'word ' * 14}end", "limit is 72"),
}


def checked(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "message"
    file.write_text(message, "utf-8")
    return subprocess.run([SCRIPT, file], capture_output=True, text=True, check=False)


@pytest.mark.process
@pytest.mark.parametrize("message", GOOD.values(), ids=GOOD)
def test_a_message_of_the_form_passes(message: str, tmp_path: Path) -> None:
    assert checked(message, tmp_path).returncode == 0, checked(message, tmp_path).stderr


@pytest.mark.process
@pytest.mark.parametrize(("message", "why"), BAD.values(), ids=BAD)
def test_another_message_is_refused_with_the_reason(message: str, why: str, tmp_path: Path) -> None:
    done = checked(message, tmp_path)
    assert done.returncode == 1
    assert why in done.stderr
