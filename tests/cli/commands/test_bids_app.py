"""`bids-app`: the conventions of BIDS Apps around `translate`, and its Boutiques descriptor."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from support.batch_world import scan, tiny_model
from support.bids_judge import bids_errors
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.program import program_version


class World:
    """Two participants, the second with one session of the first's two, and other folders."""

    def __init__(self, root: Path) -> None:
        self.dataset, self.output = root / "ds", root / "derivatives"
        self.model = tiny_model(root / "model.safetensors")
        for place in (
            "sub-01/ses-a/anat/sub-01_ses-a_T1w",
            "sub-01/ses-b/anat/sub-01_ses-b_T1w",
            "sub-02/ses-a/anat/sub-02_ses-a_T1w",
            "derivatives/other/sub-01/anat/sub-01_T1w",
            "sourcedata/sub-03/anat/sub-03_T1w",
        ):
            scan(self.dataset / f"{place}.nii.gz", seed=len(place))
        self.describe('{"Name": "x", "BIDSVersion": "1.8.0"}')

    def describe(self, text: str) -> None:
        (self.dataset / "dataset_description.json").write_text(text)

    def run(self, *options: str, level: str = "participant") -> Result:
        words = [self.dataset, self.output, level, "--model", self.model, "--device", "cpu"]
        return CliRunner().invoke(app, ["bids-app", *map(str, words), *options])

    def images(self) -> list[str]:
        return sorted(path.name for path in self.output.rglob("*.nii.gz"))

    def inputs(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.dataset.rglob("*") if path.is_file()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


ALL = [
    "sub-01_ses-a_desc-synthetic_T2w.nii.gz",
    "sub-01_ses-b_desc-synthetic_T2w.nii.gz",
    "sub-02_ses-a_desc-synthetic_T2w.nii.gz",
]


def test_all_participants_become_a_valid_derivative_dataset(world: World) -> None:
    before = world.inputs()
    done = world.run()
    assert done.exit_code == 0, done.output
    assert world.images() == ALL
    assert world.inputs() == before
    description = json.loads((world.output / "dataset_description.json").read_text())
    assert description["DatasetLinks"] == {"ds": "../ds"}
    assert "3 up to date" in world.run().stdout
    assert bids_errors(world.output) == []


@pytest.mark.parametrize(
    ("options", "images"),
    [
        ("--participant-label 01", ALL[:2]),
        ("--participant_label sub-02", ALL[2:]),
        ("--participant-label 01 02 --session-label a", ALL[::2]),
        ("--participant-label 01 --participant-label 02 --session_label ses-a b", ALL),
        ("--participant-label=01 --session-label=b", ALL[1:2]),
    ],
)
def test_labels_as_bids_apps_take_them(world: World, options: str, images: list[str]) -> None:
    done = world.run(*options.split())
    assert done.exit_code == 0, done.output
    assert world.images() == images


def test_a_participant_without_the_session_is_noted(world: World) -> None:
    done = world.run("--session-label", "b")
    assert world.images() == ALL[1:2]
    assert "note: sub-02 has no folder ses-b and is skipped" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--participant-label 01 04", "the dataset has no folder sub-04"),
        ("--session-label c", "the dataset has no folder ses-c"),
        ("--participant-label", "Option '--participant-label' requires an argument"),
        ("--participant-label ../ds", "the dataset has no folder sub-../ds"),
        ("--layout mirror", "No such option: --layout"),
    ],
)
def test_wrong_labels_end_before_any_work(world: World, options: str, message: str) -> None:
    done = world.run(*options.split())
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not world.output.exists()


def test_a_group_level_is_refused(world: World) -> None:
    done = world.run(level="group")
    assert done.exit_code == 2
    assert "'group' is not one of 'participant'" in done.stderr


@pytest.mark.parametrize("text", ["", "[]", '{"Name": "x"}', '{"Name": "x", "BIDSVersion": 1}'])
def test_the_description_is_checked_unless_asked_not_to(world: World, text: str) -> None:
    world.describe(text)
    done = world.run()
    assert done.exit_code == 2
    assert "JSON without Name and BIDSVersion" in " ".join(done.stderr.split())
    assert world.run("--skip-bids-validation", "--participant-label", "02").exit_code == 0
    assert world.images() == ALL[2:]


def test_a_folder_without_participants_is_refused(world: World) -> None:
    world.dataset = world.dataset / "derivatives"
    done = world.run("--skip-bids-validation")
    assert done.exit_code == 2
    assert "contains no folder sub-LABEL" in " ".join(done.stderr.split())


def test_a_participant_without_scans_is_no_study(world: World) -> None:
    (world.dataset / "sub-04").mkdir()
    assert world.run("--participant-label", "04").exit_code == 3


def test_links_may_lead_anywhere_in_the_dataset_and_not_out_of_it(world: World) -> None:
    annexed = world.dataset / ".git" / "annex" / "objects" / "x.nii.gz"
    annexed.parent.mkdir(parents=True)
    [inside] = world.dataset.glob("sub-01/ses-a/anat/*.nii.gz")
    inside.rename(annexed)
    inside.symlink_to("../../../.git/annex/objects/x.nii.gz")
    [outside] = world.dataset.glob("sub-02/ses-a/anat/*.nii.gz")
    outside.symlink_to(outside.rename(world.dataset.parent / "away.nii.gz"))
    done = world.run()
    assert done.exit_code == 1
    assert "leads outside the inputs" in done.stderr
    assert world.images() == ALL[:2]


def test_a_participant_that_is_a_link_out_of_the_dataset_needs_consent(world: World) -> None:
    moved = (world.dataset / "sub-02").rename(world.dataset.parent / "elsewhere")
    (world.dataset / "sub-02").symlink_to(moved)
    done = world.run()
    assert done.exit_code == 2
    assert "give --follow-links" in " ".join(done.stderr.split())
    assert world.run("--follow-links").exit_code == 0
    assert world.images() == ALL


def test_the_version_is_printed_without_arguments() -> None:
    done = CliRunner().invoke(app, ["bids-app", "--version"])
    assert done.stdout.split() == ["cuda-cyclegan", program_version()]


@pytest.fixture(scope="module")
def descriptor() -> dict[str, Any]:
    done = CliRunner().invoke(app, ["bids-app", "--descriptor"])
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_every_option_is_in_the_descriptor_and_parses_as_it_states(
    descriptor: dict[str, Any],
) -> None:
    root: Any = typer.main.get_command(app)
    command = root.commands["bids-app"]
    names = {one.name for one in command.params if not one.is_eager}
    assert {each["id"] for each in descriptor["inputs"]} == names
    line, expected = descriptor["command-line"], {}
    for each in descriptor["inputs"]:
        words, value = sample(each)
        assert line.count(each["value-key"]) == 1
        line = line.replace(each["value-key"], f"{each.get('command-line-flag', '')} {words}")
        expected[each["id"]] = value
    program, name, *words = shlex.split(line)
    assert (program, name) == ("cuda-cyclegan", "bids-app")
    parsed = command.make_context(name, words, resilient_parsing=False).params
    assert {key: str(parsed[key]) for key in expected} == {
        key: str(value) for key, value in expected.items()
    }


def sample(stated: dict[str, Any]) -> tuple[str, object]:
    """A value of an input on a command line, and as it is parsed."""
    if stated["type"] == "Flag":
        return "", True
    if stated.get("list"):
        return "x y", ("x", "y")
    if stated["type"] == "Number":
        return ("3", 3) if stated.get("integer") else ("1.5", 1.5)
    if "value-choices" in stated:
        word = stated["value-choices"][-1]
        return word, word
    return {"overlap": ("0.5", 0.5), "tune_seconds": ("7", 7.0)}.get(stated["id"], ("x", "x"))


def test_the_descriptor_is_valid(descriptor: dict[str, Any], tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("bosh")
    bosh = str(beside) if beside.exists() else shutil.which("bosh")
    if bosh is None:
        pytest.skip("boutiques is not installed")
    file = tmp_path / "descriptor.json"
    file.write_text(json.dumps(descriptor))
    done = subprocess.run([bosh, "validate", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
