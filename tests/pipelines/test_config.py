"""Keys written into a config file, and all else of it as it was."""

import tomllib
from pathlib import Path

import pytest

from cuda_cyclegan.pipelines.config import write_defaults
from cuda_cyclegan.pipelines.errors import ConfigError

KEYS = {"patch": "96,96,96", "batch": 4}


def test_a_missing_file_is_made(tmp_path: Path) -> None:
    file = tmp_path / "new" / "cuda-cyclegan.toml"
    write_defaults(file, "translate", KEYS)
    assert file.read_text() == '[translate]\npatch = "96,96,96"\nbatch = 4\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '# mine\nqueue = "q"\n',
            '# mine\nqueue = "q"\n\n[translate]\npatch = "96,96,96"\nbatch = 4\n',
        ),
        (
            "[translate]\npatch = [8, 8, 8]  # old\noverlap = 0.5\n\n"
            '[submit]\nname = "patch = 1"\n',
            '[translate]\npatch = "96,96,96"\nbatch = 4\noverlap = 0.5\n\n'
            '[submit]\nname = "patch = 1"\n',
        ),
        (
            '[submit]\npatch = "1,1,1"\n[ translate ] # here\nbatch=1\n',
            '[submit]\npatch = "1,1,1"\n[ translate ] # here\npatch = "96,96,96"\nbatch = 4\n',
        ),
    ],
)
def test_text_of_users_stays(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "cuda-cyclegan.toml"
    file.write_text(before)
    write_defaults(file, "translate", KEYS)
    assert file.read_text() == after
    assert tomllib.loads(after)["translate"]["patch"] == "96,96,96"


@pytest.mark.parametrize(
    "text",
    [
        'translate.patch = "8,8,8"\n',
        'translate = { patch = "8,8,8" }\n',
        '[translate]\npatch = """8,\n8,8"""\n',
        '[submit]\nname = """\n[translate]\n"""\n',
    ],
)
def test_a_file_in_another_style_is_left_to_its_author(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cuda-cyclegan.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="only you can add to") as caught:
        write_defaults(file, "translate", KEYS)
    assert 'patch = "96,96,96"' in str(caught.value)
    assert file.read_text() == text


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "cuda-cyclegan.toml"
    file.write_text("[translate\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        write_defaults(file, "translate", KEYS)
