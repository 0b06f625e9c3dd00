"""`--layout bids`: a derivative dataset, as the public validator has it."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import pytest
import SimpleITK as _SimpleITK
from support.batch_world import mixing_model, scan, tiny_model
from support.bids_judge import bids_errors
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld
from support.translate_world import one_sentence
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.results.bids import SUFFIXES_OF_BIDS, TARGETS, bids_suffix

nibabel: Any = _nibabel
sitk: Any = _SimpleITK


class World:
    """A BIDS dataset, and a folder for results in it that is not there yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs, self.output = root / "ds", root / "ds" / "derivatives" / "synthetic"
        self.model = tiny_model(root / "model.safetensors")
        self.inputs.mkdir()
        (self.inputs / "dataset_description.json").write_text(
            '{"Name": "x", "BIDSVersion": "1.8.0", "DatasetDOI": "doi:10.18112/x"}'
        )

    def scan(self, place: str, sidecar: Mapping[str, Any] | None = None, seed: int = 1) -> Path:
        file = scan(self.inputs / place, seed)
        if sidecar is not None:
            file.with_name(file.name.replace(".nii.gz", ".json")).write_text(json.dumps(sidecar))
        return file

    def run(self, *options: str, command: str = "translate", model: Path | None = None) -> Result:
        words = [command, self.inputs, "--model", model or self.model, "--output", self.output]
        options = ("--layout", "bids", *options) if "--layout" not in options else options
        return CliRunner().invoke(app, [*map(str, words), "--device", "cpu", *options])

    def made(self) -> set[str]:
        files = (path for path in self.output.rglob("*") if path.is_file())
        return {path.relative_to(self.output).as_posix() for path in files}

    def images(self) -> set[str]:
        return {name for name in self.made() if name.endswith((".nii", ".nii.gz"))}

    def json(self, name: str) -> dict[str, Any]:
        return json.loads((self.output / name).read_text())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_dataset_with_sidecars_and_its_description(world: World) -> None:
    world.scan("sub-01/anat/sub-01_T1w.nii.gz")
    done = world.run("--preview")
    assert done.exit_code == 0, done.output
    name = "sub-01/anat/sub-01_desc-synthetic_T2w"
    assert world.made() == {
        *(f"{name}.nii.gz", f"{name}.json", f"{name}.nii.gz.preview.png"),
        *("dataset_description.json", ".bidsignore", "README"),
    }
    reported = world.json("dataset_description.json")
    assert reported["DatasetType"] == "derivative"
    assert [made["Name"] for made in reported["GeneratedBy"]] == ["cuda-cyclegan"]
    assert reported["SourceDatasets"] == [{"URL": "../..", "DOI": "doi:10.18112/x"}]
    assert reported["DatasetLinks"] == {"ds": "../.."}
    assert world.json(f"{name}.json")["Sources"] == ["bids:ds:sub-01/anat/sub-01_T1w.nii.gz"]
    assert world.json(f"{name}.json")["SkullStripped"] is False
    assert str(world.root) not in json.dumps([reported, world.json(f"{name}.json")])
    again = world.run("--preview")
    assert "1 up to date" in again.stdout
    assert world.json("dataset_description.json") == reported


def test_bytes_of_a_folder_that_are_not_utf8_are_escaped(world: World) -> None:
    world.scan("sub-01/anat/sub-01_T1w.nii.gz")
    world.inputs = world.inputs.rename(world.inputs.with_name("ds\udcff"))
    world.output = world.root / "synthetic\udcfe"
    for _ in range(2):
        done = world.run()
        assert done.exit_code == 0, done.output
    reported = world.json("dataset_description.json")
    assert reported["Name"] == "synthetic\udcfe"
    assert reported["DatasetLinks"] == {"ds": "../ds%FF"}


def test_fields_are_inherited_from_the_dataset(world: World) -> None:
    world.scan("sub-01/ses-1/anat/sub-01_ses-1_space-abc_T1w.nii.gz", {"BodyPart": "HEAD"})
    (world.inputs / "T1w.json").write_text('{"SkullStripped": true, "BodyPart": "NECK"}')
    (world.inputs / "T2w.json").write_text('{"Resolution": "of others"}')
    (world.inputs / "sub-01" / "sub-02_T1w.json").write_text('{"Resolution": "of another"}')
    world.run()
    reported = world.json("sub-01/ses-1/anat/sub-01_ses-1_space-abc_desc-synthetic_T2w.json")
    source = "bids:ds:sub-01/ses-1/anat/sub-01_ses-1_space-abc_T1w.nii.gz"
    assert (reported["SkullStripped"], reported["BodyPart"]) == (True, "HEAD")
    assert "Resolution" not in reported
    assert reported["SpatialReference"] == source


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("bids::sub-01/anat/x.nii.gz", "bids:ds:sub-01/anat/x.nii.gz"),
        ("https://example.org/mni.nii.gz", "https://example.org/mni.nii.gz"),
        ("dataset/private/x.nii.gz", "bids:ds:sub-01/anat/sub-01_T1w.nii.gz"),
        ({"VolumeReference": "x"}, None),
    ],
)
def test_a_reference_is_right_from_the_new_dataset(
    world: World, given: object, kept: str | None
) -> None:
    world.scan("sub-01/anat/sub-01_T1w.nii.gz", {"SpatialReference": given})
    world.run()
    reported = world.json("sub-01/anat/sub-01_desc-synthetic_T2w.json")
    assert reported.get("SpatialReference") == kept


@pytest.mark.parametrize(
    ("scan_name", "result"),
    [
        ("sub-01_T1w.nii.gz", "sub-01/anat/sub-01_desc-synthetic_T2w.nii.gz"),
        ("x/sub-01_ses-2_T1w.nii", "sub-01/ses-2/anat/sub-01_ses-2_desc-synthetic_T2w.nii"),
        (
            "sub-01_acq-a_ce-gd_run-2_inv-1_T1w.nii.gz",
            "sub-01/anat/sub-01_acq-a_ce-gd_run-2_desc-synthetic_T2w.nii.gz",
        ),
        ("sub-01_desc-preproc_T1w.nii.gz", "sub-01/anat/sub-01_desc-syntheticPreproc_T2w.nii.gz"),
        ("sub-01_T1w.nrrd", None),
    ],
)
def test_names(world: World, scan_name: str, result: str | None) -> None:
    if result is None:
        result = "sub-01/anat/sub-01_desc-synthetic_T2w.nii.gz"
        image = sitk.ReadImage(str(scan(world.root / "x.nii.gz")))
        sitk.WriteImage(image, str(world.inputs / scan_name))
    else:
        world.scan(scan_name)
    done = world.run("--any-contrast")
    assert done.exit_code == 0, done.output
    assert world.images() == {result}


@pytest.mark.parametrize("name", ["a.nii.gz", "01_T1w.nii.gz", "ses-1_T1w.nii.gz", "sub-1.nii.gz"])
def test_a_scan_without_a_subject_is_refused(world: World, name: str) -> None:
    world.scan(name)
    world.scan("sub-02_T1w.nii.gz")
    done = world.run()
    assert done.exit_code == 1
    assert "its name is not a BIDS name such as sub-01_T1w" in done.stderr
    assert world.images() == {"sub-02/anat/sub-02_desc-synthetic_T2w.nii.gz"}


def test_series_and_pairs_of_files_are_refused(world: World) -> None:
    Phantom("MR", slices=16, intercept=0.0).write(world.inputs / "sub-01")
    image = nibabel.load(scan(world.root / "x.nii.gz"))
    nibabel.save(image, world.inputs / "sub-01_T1w.img")
    done = world.run()
    assert "its name is not a BIDS name" in done.stderr
    assert "BIDS does not allow pairs of .hdr and .img" in done.stderr


class TestContrasts:
    @pytest.mark.parametrize(
        ("target", "suffix"),
        [
            *(("T1", "T1w"), ("T2", "T2w"), ("t2w", "T2w"), ("FLAIR", "FLAIR"), ("CT", "ct")),
            *(("T2 FLAIR", "FLAIR"), ("T2-weighted MRI", "T2w"), ("MR T1", "T1w"), ("PD", "PDw")),
            *(("T2*", "T2starw"), ("PET", "pet"), ("synthetic CT", "ct")),
            *(("T1ce", None), ("ADC", None), ("", None), ("T1, T2", None), ("FDG PET", None)),
        ],
    )
    def test_suffixes(self, target: str, suffix: str | None) -> None:
        assert bids_suffix(target) == suffix

    def test_the_page_has_the_table(self) -> None:
        page = (Path(__file__).parents[3] / "docs" / "names.md").read_text("utf-8")
        assert all(f"| `{suffix}` | `" in page for suffix in TARGETS)

    def test_all_but_ct_are_in_the_standard(self) -> None:
        assert TARGETS.keys() - SUFFIXES_OF_BIDS == {"ct"}

    def test_an_unknown_one_is_asked_for(self, world: World) -> None:
        world.scan("sub-01_T1w.nii.gz")
        model = tiny_model(world.root / "other.safetensors", target="ADC")
        done = world.run(model=model)
        assert done.exit_code == 2
        assert one_sentence(done) == (
            "Error: BIDS has no known suffix for the target ADC; give one with --bids-suffix."
        )
        assert not world.output.exists()
        assert world.run("--bids-suffix", "T1map", model=model).exit_code == 0
        assert world.images() == {"sub-01/anat/sub-01_desc-synthetic_T1map.nii.gz"}
        two = world.run("--bids-suffix", "T2w,PDw", model=model)
        assert "makes 1 results of a study, and --bids-suffix has 2" in two.stderr

    def test_results_of_several_channels_have_their_own(self, world: World) -> None:
        world.scan("sub-01_T1.nii.gz")
        model = mixing_model(world.model, ((1.0,), (2.0,)), ("T1",), ("T2", "FLAIR"))
        world.run(model=model)
        assert world.images() == {
            "sub-01/anat/sub-01_desc-synthetic_T2w.nii.gz",
            "sub-01/anat/sub-01_desc-synthetic_FLAIR.nii.gz",
        }
        mixed = mixing_model(world.model, ((1.0,), (2.0,)), ("T1",), ("T2", "PET"))
        assert "in two folders of a BIDS dataset" in one_sentence(world.run(model=mixed))


def test_results_of_a_second_model_have_its_name(world: World) -> None:
    world.scan("sub-01_T1w.nii.gz")
    world.run()
    second = tiny_model(world.root / "second.safetensors", 5)
    assert world.run(model=second).exit_code == 0
    assert world.images() == {
        "sub-01/anat/sub-01_desc-synthetic_T2w.nii.gz",
        "sub-01/anat/sub-01_desc-syntheticTiny_T2w.nii.gz",
    }
    assert len(world.json("dataset_description.json")["GeneratedBy"]) == 2
    for model in (world.model, second):
        assert "1 up to date" in world.run(model=model).stdout
    third = tiny_model(world.root / "third.safetensors", 7)
    assert world.run(model=third).exit_code == 0
    assert len(world.images()) == 3


def test_two_scans_for_one_name_are_refused_and_both_named(world: World) -> None:
    world.scan("sub-01_inv-1_T1w.nii.gz")
    world.scan("sub-01_inv-2_T1w.nii.gz", seed=2)
    done = world.run("--any-contrast", command="plan")
    for number in (1, 2):
        assert f"its result would overwrite that of sub-01_inv-{number}_T1w.nii.gz" in done.stdout
    assert "0 to translate" in done.stdout


class TestOutputFolders:
    def test_dataset_of_another_program_is_refused(self, world: World) -> None:
        world.scan("sub-01_T1w.nii.gz")
        world.output.mkdir(parents=True)
        description = world.output / "dataset_description.json"
        description.write_text('{"GeneratedBy": [{"Name": "fmriprep"}]}')
        done = world.run()
        assert done.exit_code != 0
        assert "describes a dataset that this program did not write" in one_sentence(done)
        assert world.made() == {"dataset_description.json"}

    def test_dataset_of_another_layout_is_refused(self, world: World) -> None:
        world.scan("sub-01_T1w.nii.gz")
        world.run("--layout", "mirror")
        assert "results without BIDS names" in one_sentence(world.run())
        shutil.rmtree(world.output)
        shutil.rmtree(world.output.with_name(f".{world.output.name}.cuda-cyclegan"))
        world.run()
        done = world.run("--layout", "mirror")
        assert "is a BIDS dataset of results; use --layout bids" in one_sentence(done)

    def test_additions_of_users_to_the_description_stay(self, world: World) -> None:
        world.scan("sub-01_T1w.nii.gz")
        world.run()
        description = world.output / "dataset_description.json"
        reported = {**json.loads(description.read_text()), "Authors": ["A"], "Name": "Mine"}
        description.write_text(json.dumps(reported))
        (world.output / ".bidsignore").write_text("extra/*")
        world.run()
        assert json.loads(description.read_text()) == reported
        ignored = (world.output / ".bidsignore").read_text().splitlines()
        assert ignored == ["extra/*", "*.preview.png", "*.map-*"]

    def test_second_of_two_datasets_with_one_name_is_refused(self, world: World) -> None:
        world.scan("sub-01_T1w.nii.gz")
        world.output = world.root / "results"
        world.run()
        shutil.copytree(world.inputs, world.root / "other" / "ds")
        world.inputs = world.root / "other" / "ds"
        done = world.run()
        assert "has results of another dataset named ds" in one_sentence(done)


def test_jobs_make_the_same_dataset(world: World, tmp_path: Path) -> None:
    world.scan("sub-01/ses-1/anat/sub-01_ses-1_T1w.nii.gz", {"SkullStripped": True})
    world.run()
    (tmp_path / "queue").mkdir()
    queue = QueueWorld(tmp_path / "queue")
    queue.inputs, queue.model = world.inputs, world.model
    queue.output = world.inputs / "derivatives" / "queued"
    batch = queue.submit("--layout", "bids")
    queue.work()
    assert queue.states(batch) == ["done"]
    files = {path.relative_to(queue.output).as_posix() for path in queue.output.rglob("*.*")}
    assert files == world.made() - {"README"}
    name = "sub-01/ses-1/anat/sub-01_ses-1_desc-synthetic_T2w.json"
    assert json.loads((queue.output / name).read_text()) == world.json(name)


def test_results_are_evaluated_against_acquired_scans(world: World) -> None:
    world.scan("sub-01/anat/sub-01_T1w.nii.gz")
    world.run()
    truth = world.root / "truth"
    scan(truth / "sub-01" / "anat" / "sub-01_T2w.nii.gz", 3)
    done = CliRunner().invoke(app, ["evaluate", str(world.output), "--truth", str(truth)])
    assert done.exit_code == 0, done.output


@pytest.mark.slow
class TestValidator:
    """bids-validator-deno finds no error."""

    def test_without_sessions(self, world: World) -> None:
        for number in (1, 2):
            world.scan(f"sub-0{number}/anat/sub-0{number}_T1w.nii.gz", seed=number)
        world.run("--preview", "--spread", "2")
        assert bids_errors(world.output) == []

    def test_with_sessions(self, world: World) -> None:
        for session in ("pre", "post"):
            world.scan(
                f"sub-01/ses-{session}/anat/sub-01_ses-{session}_acq-a_ce-gd_run-1_T1w.nii.gz"
            )
        world.run("--any-contrast")
        assert bids_errors(world.output) == []

    def test_with_sidecars_and_a_second_model(self, world: World) -> None:
        reported = {"SkullStripped": True, "EchoTime": 0.01, "Resolution": "1 mm"}
        world.scan("sub-01/anat/sub-01_space-abc_res-1_desc-preproc_T1w.nii.gz", reported)
        world.scan("sub-01/anat/sub-01_echo-1_part-mag_chunk-1_T1w.nii.gz", reported)
        world.run()
        world.run(model=tiny_model(world.root / "second.safetensors", 5))
        assert bids_errors(world.output) == []

    @pytest.mark.parametrize("target", ["CT", "PET", "FLAIR", "PD", "T2*", "T1"])
    def test_with_each_contrast(self, world: World, target: str) -> None:
        world.scan("sub-01/anat/sub-01_run-1_T1w.nii.gz")
        world.model = tiny_model(world.model, target=target)
        world.run("--preview")
        assert len(world.images()) == 1
        assert bids_errors(world.output) == []

    def test_with_each_suffix(self, world: World) -> None:
        for number, suffix in enumerate([*sorted(SUFFIXES_OF_BIDS), "mine"]):
            world.scan(f"sub-{number:02}_T1w.nii.gz")
            world.run("--bids-suffix", suffix)
        assert len(world.images()) == len(SUFFIXES_OF_BIDS) + 1
        assert bids_errors(world.output) == []

    def test_the_judge_finds_what_is_wrong(self, world: World) -> None:
        world.scan("sub-01/anat/sub-01_T1w.nii.gz")
        world.run()
        (world.output / "sub-01" / "anat" / "sub-01_desc-synthetic_T2w.json").unlink()
        assert bids_errors(world.output) != []
