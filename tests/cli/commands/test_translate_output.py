"""Place of one result of the translate command, and the spellings of its options."""

import gzip
import re
from pathlib import Path

from support.batch_world import scan
from support.translate_world import World
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app


def to_file(world: World, source: Path, target: Path, *options: str) -> Result:
    words = ["translate", source, "--model", world.model, "--output", target, *options]
    return CliRunner().invoke(app, list(map(str, words)))


def test_an_output_that_names_a_file_is_that_file(world: World, tmp_path: Path) -> None:
    """The same holds next to the scan, and for a folder that holds one study."""
    source = scan(world.inputs / "a.nii")
    world.translate()
    target = world.inputs / "b.nii.gz"
    done = to_file(world, source, target)
    assert done.exit_code == 0, done.stderr
    assert f"Result: {target}" in done.stdout
    assert gzip.decompress(target.read_bytes()) == (world.output / "a.nii").read_bytes()
    assert "1 up to date" in to_file(world, source, target).stdout
    other = tmp_path / "elsewhere" / "c.nii"
    scan(tmp_path / "one" / "deep" / "a.nii")
    assert to_file(world, tmp_path / "one", other).exit_code == 0
    assert other.read_bytes() == (world.output / "a.nii").read_bytes()


def test_a_file_as_output_holds_one_result_of_its_kind_and_never_the_scan(world: World) -> None:
    source = scan(world.inputs / "a.nii")
    before = source.read_bytes()
    for target, reported in (
        (source, "is the scan itself"),
        (world.inputs / "x.mhd", "must end in .nii, .nii.gz, .nrrd or .mha"),
        (world.inputs / "x.hdr", "must end in .nii, .nii.gz, .nrrd or .mha"),
    ):
        refused = to_file(world, source, target)
        assert (refused.exit_code, reported in refused.stderr) == (2, True), refused.stderr
    scan(world.inputs / "b.nii")
    refused = to_file(world, world.inputs, world.inputs / "x.nii.gz")
    assert (refused.exit_code, "there are 2 studies" in refused.stderr) == (2, True)
    refused = to_file(world, source, world.inputs / "x.nii.gz", "--format", "dicom")
    assert (refused.exit_code, "is a folder" in refused.stderr) == (2, True)
    assert source.read_bytes() == before
    assert not (world.inputs / "x.nii.gz").exists()


def test_no_place_of_results_is_reported_where_none_was_made(world: World) -> None:
    source = scan(world.inputs / "a.nii")
    taken = scan(world.inputs.parent / "taken.nii")
    refused = to_file(world, source, taken)
    assert refused.exit_code == 1
    assert "was not written by this program" in refused.stderr
    assert "Result" not in refused.stdout


def test_a_patch_that_no_memory_holds_is_refused_with_one_that_fits(world: World) -> None:
    scan(world.inputs / "a.nii")
    done = world.translate("--device", "cpu", "--patch", "8000,8000,8000")
    assert done.exit_code == 2
    assert re.search(
        r"8000x8000x8000 need \d+\.\d GiB of memory,\s+and \d+\.\d GiB are free; --patch "
        r"\d+,\d+,\d+ fits\.",
        " ".join(done.stderr.split()),
    )


def test_short_options_are_those_of_every_neighbour(world: World) -> None:
    scan(world.inputs / "a.nii")
    words = ["-i", world.inputs, "-o", world.output, "-m", world.model, "-d", "cpu"]
    done = CliRunner().invoke(app, ["translate", *map(str, words)])
    assert done.exit_code == 0, done.stderr
    assert set(world.files()) == {"a.nii"}
    nothing = CliRunner().invoke(app, ["plan", *map(str, words[2:])])
    assert (nothing.exit_code, "give scan files or folders" in nothing.stderr) == (2, True)
