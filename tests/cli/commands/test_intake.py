"""A folder of everything: the scans for a model of T1 are translated, the rest is passed over."""

import json
import re
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import scan, tiny_model
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld

from cuda_cyclegan.io.formats.marks import line_of
from cuda_cyclegan.io.volume import SyntheticMark
from cuda_cyclegan.pipelines.api import ScanError, TranslateOptions, translate_folder
from cuda_cyclegan.pipelines.api.translator import Translator
from cuda_cyclegan.pipelines.jobs.submission import jobs_of
from cuda_cyclegan.pipelines.request import Request

nibabel: Any = _nibabel
MARK = SyntheticMark("t2-to-t1", "T2", "T1", "0.2", "0123456789ab")
TAKEN = {"anat/sub-01_T1w.nii.gz", "maskless_T1.nii", "plain.nii", "mr/series-0004"}
KINDS = {
    "anat/sub-01_T2w.nii.gz": "contrast",
    "anat/sub-01_space-T1w_FLAIR.nii.gz": "contrast",
    "anat/sub-01_bold.nii.gz": "contrast",
    "0007.nii": "contrast",
    "anat/sub-01_desc-brain_mask.nii.gz": "mask",
    "anat/sub-01_dseg.nii.gz": "mask",
    "tumour.seg.nrrd": "mask",
    "atlas.nii.gz": "mask",
    "copied/sub-02_T1w.nii.gz": "synthetic",
    "ours": "synthetic",
    "ct": "modality",
}


def marked(path: Path, descrip: str = "", intent: int = 0) -> Path:
    """A scan whose header has a description and an intent code."""
    image = nibabel.Nifti1Image(nibabel.load(scan(path)).get_fdata().astype(np.int16), np.eye(4))
    image.header["descrip"], image.header["intent_code"] = descrip, intent
    image.to_filename(path)
    return path


def fill(folder: Path) -> None:
    anat = folder / "anat"
    for suffix in ("T1w", "T2w", "space-T1w_FLAIR", "desc-brain_mask", "dseg"):
        scan(anat / f"sub-01_{suffix}.nii.gz")
    scan(anat / "sub-01_bold.nii.gz", shape=(8, 8, 8, 3))
    scan(folder / "maskless_T1.nii")
    scan(folder / "plain.nii")
    scan(folder / "0007.nii")
    (folder / "0007.json").write_text(
        '{"Modality": "MR", "SeriesDescription": "t2_tse_tra Doe Jane"}'
    )
    seg = np.arange(512).reshape(8, 8, 8).astype(np.uint8)
    header = "NRRD0004\ntype: uint8\ndimension: 3\nsizes: 8 8 8\nencoding: raw\n"
    (folder / "tumour.seg.nrrd").write_bytes(header.encode() + b"\n" + seg.tobytes())
    marked(folder / "atlas.nii.gz", intent=1002)
    marked(folder / "copied" / "sub-02_T1w.nii.gz", line_of(MARK))
    Phantom("MR", series="1.2.3.4.5.7", number=4).write(folder / "mr")
    Phantom("CT").write(folder / "ct")

    def ours(data: Any, _: int) -> None:
        data.Manufacturer = "cuda-cyclegan"

    Phantom("MR", series="1.2.3.4.5.8", number=5).write(folder / "ours", ours)

    def segments(data: Any, _: int) -> None:
        data.Modality = "SEG"

    Phantom("MR", series="1.2.3.4.5.9", number=6).write(folder / "seg", segments)
    (folder / "notes.txt").touch()


@pytest.fixture
def ward(tmp_path: Path) -> QueueWorld:
    world = QueueWorld(tmp_path)
    fill(world.inputs)
    return world


def plain(name: str) -> str:
    """A study's name without the digest of its series."""
    return re.sub(r"(series-\d{4}).*", r"\1", name)


def place(path: str, folder: Path) -> str:
    """Return which of the inputs a path is, a series by its folder."""
    name = Path(path).relative_to(folder)
    return str(name.parent if name.suffix == ".dcm" or not name.suffix else name)


def test_translate_takes_exactly_the_scans_of_its_model(ward: QueueWorld) -> None:
    report = ward.folder / "r.json"
    done = ward.command("translate", "--report", str(report))
    assert done.exit_code == 0, done.output
    reported = json.loads(report.read_text())
    assert {plain(row["name"]) for row in reported["studies"]} == TAKEN
    skips = {place(row["path"], ward.inputs): row for row in reported["skipped"]}
    assert {name: row["kind"] for name, row in skips.items() if row["kind"]} == KINDS
    assert set(skips) - set(KINDS) == {"seg"}
    assert "skipped: " in done.stdout
    assert "use --any-contrast to include it" in done.stdout
    assert "its BIDS suffix states T2 (T2w), and the model translates T1 (MR)" in done.stdout
    assert "0007.nii: its JSON sidecar states T2 (description)" in done.stdout
    assert "Jane" not in done.output
    assert "it is a synthetic image, written by this program; use --allow-synthetic" in done.stdout
    note = "note: plain.nii: nothing shows that the scan is T1 (MR); check that it fits"
    assert note in done.stdout
    again = ward.command("translate")
    assert "4 up to date" in again.stdout
    assert note in again.stdout
    assert again.stdout.count("skipped: ") == done.stdout.count("skipped: ")


def test_plan_and_discover_list_the_same(ward: QueueWorld) -> None:
    planned = ward.command("plan")
    assert "4 studies: 4 to translate" in planned.stdout
    assert planned.stdout.count("skipped: ") == len({*KINDS, "seg"})
    found = json.loads(ward.command("discover", "--model", str(ward.model), "--json").stdout)
    rows = {place(row["path"], ward.inputs): row["kind"] for row in found["skipped"]}
    assert {name: kind for name, kind in rows.items() if kind} == KINDS
    assert {place(row["path"], ward.inputs) for row in found["files"]} == {
        name for name in TAKEN if "series" not in name
    }
    verdicts = {Path(row["folder"]).name: row["verdict"] for row in found["series"]}
    assert verdicts == {"mr": "taken", "ct": "skipped", "ours": "skipped", "seg": "skipped"}
    lines = ward.command("discover", "--model", str(ward.model)).stdout.splitlines()
    assert any("sub-01_T2w.nii.gz" in line and line.endswith("skipped") for line in lines)


def test_discover_without_a_model_knows_what_is_no_scan_for_any(ward: QueueWorld) -> None:
    found = json.loads(ward.command("discover", "--json").stdout)
    assert {row["kind"] for row in found["skipped"]} == {"mask", "synthetic", ""}


def test_submit_queues_the_same_and_says_what_it_passes_over(ward: QueueWorld) -> None:
    done = ward.run(
        "submit", str(ward.inputs), "--model", str(ward.model), "--output", str(ward.output)
    )
    assert done.exit_code == 0, done.stderr
    assert "4 studies queued" in done.stderr
    assert done.stderr.count("skipped: ") == len(KINDS)


def test_options_take_what_is_skipped_and_report_it(ward: QueueWorld) -> None:
    done = ward.command("plan", "--any-contrast", "--allow-synthetic", "--volume", "0")
    assert "15 studies: 15 to translate" in done.stdout, done.stdout
    assert done.stdout.count("skipped: ") == len({"seg"})
    note = (
        "copied/sub-02_T1w.nii.gz: it is a synthetic image, written by this program; it is included"
    )
    assert note in done.stdout
    for option, left in (("--any-contrast", 2), ("--allow-synthetic", 9), ("--any-modality", 10)):
        assert ward.command("plan", option).stdout.count("skipped: ") == left + len({"seg"})
    some = TranslateOptions(patch=(16, 16, 16), any_contrast=True, allow_synthetic=True)
    request = Request((ward.inputs,), ward.model, ward.output, options=some)
    assert len(jobs_of(request).jobs) == 15


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("anat/sub-01_T2w.nii.gz", "any-contrast"),
        ("tumour.seg.nrrd", "any-contrast"),
        ("copied/sub-02_T1w.nii.gz", "allow-synthetic"),
    ],
)
def test_named_scan_is_refused_with_the_option_that_takes_it(
    ward: QueueWorld, name: str, option: str
) -> None:
    file = ward.inputs / name
    paths = [str(file), "--model", str(ward.model), "--output", str(ward.output)]
    done = ward.run("translate", *paths)
    assert done.exit_code == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert line.startswith(f"failed: {file.name}: unsupported: it")
    assert line.endswith(f"use --{option} to include it")
    assert not list(ward.output.rglob("*.n*"))
    assert ward.run("translate", *paths, f"--{option}").exit_code == 0
    report = translate_folder(file, ward.model, ward.folder / "api", device="cpu")
    assert [row.status for row in report.studies] == ["failed"]
    with (
        Translator(ward.model, device="cpu") as translator,
        pytest.raises(ScanError, match=f"use setting {option} to include it"),
    ):
        translator.translate_file(file)
    asked = {option.replace("-", "_"): True}
    with Translator(ward.model, device="cpu", **asked) as translator:
        assert translator.translate_file(file).shape


def test_nothing_left_of_a_folder_says_why(ward: QueueWorld) -> None:
    for command in ("translate", "plan", "submit", "discover"):
        paths = [str(ward.inputs / "copied")]
        if command != "discover":
            paths += ["--model", str(ward.model), "--output", str(ward.output)]
        done = ward.run(command, *paths)
        assert done.exit_code == 3
        assert "No study found in" in done.stderr.splitlines()[-1]
        reason = "it is a synthetic image, written by this program; use --allow-synthetic"
        assert done.output.count(reason) == 1, command


def test_a_worker_refuses_what_became_a_result_since(ward: QueueWorld) -> None:
    batch = ward.submit("--include", "plain.nii")
    file = ward.inputs / "plain.nii"
    marked(file, line_of(MARK))
    ward.work()
    [job] = ward.jobs(batch)
    assert job["state"] == "failed"
    assert job["reason"].endswith("use --allow-synthetic to include it")


def test_globs_choose_files_folders_and_series(ward: QueueWorld) -> None:
    def taken(*options: str) -> set[str]:
        found = ward.command("discover", "--model", str(ward.model), "--json", *options)
        reported = json.loads(found.stdout)
        series = {
            f"{Path(row['folder']).name}/{plain(row['label'])}"
            for row in reported["series"]
            if row["verdict"] == "taken"
        }
        return series | {place(row["path"], ward.inputs) for row in reported["files"]}

    assert taken("--include", "*_T1w.nii.gz") == {"anat/sub-01_T1w.nii.gz"}
    assert taken("--include", "anat") == {"anat/sub-01_T1w.nii.gz"}
    assert taken("--include", "mr/series-0004-*") == {"mr/series-0004"}
    assert taken("--include", "mr/*", "--include", "plain.*") == {"mr/series-0004", "plain.nii"}
    as_nifti = ward.command("plan", "--format", "nifti", "--include", "mr/series-????-????????")
    assert "1 study: 1 to translate" in as_nifti.stdout
    assert taken("--exclude", "anat", "--exclude", "m*") == {"plain.nii"}
    assert taken("--include", "**/*.nii", "--exclude", "plain.nii") == {"maskless_T1.nii"}
    none = ward.command("plan", "--include", "*.mha")
    assert none.exit_code == 3
    assert "not matched by --include" in none.stderr
    done = ward.command("plan", "--exclude", "anat")
    assert f"skipped: {ward.inputs / 'anat'}: excluded by --exclude" in done.stdout
    file = str(ward.inputs / "plain.nii")
    paths = [file, "--model", str(ward.model), "--output", str(ward.output)]
    named = ward.run("translate", *paths, "--exclude", "plain*")
    assert named.exit_code == 1
    assert "failed: plain.nii: unsupported: excluded by --exclude" in named.stderr
    assert ward.command("plan", "--include", "").exit_code == 2
    report = translate_folder(
        ward.inputs, ward.model, ward.output, device="cpu", include=["*.nii"], exclude="plain*"
    )
    assert [row.name for row in report.studies] == ["maskless_T1.nii"]


def test_a_series_is_taken_whole_or_not_at_all(ward: QueueWorld) -> None:
    slices = sorted(path.name for path in (ward.inputs / "mr").iterdir())
    done = ward.command("plan", "--exclude", slices[0])
    assert "4 studies: 4 to translate" in done.stdout
    only = ward.command("plan", "--include", f"*{Path(slices[0]).suffix}", "--include", "im*")
    assert "mr/series-0004" in only.stdout


def test_damaged_file_where_nothing_is_requested_is_no_failure(ward: QueueWorld) -> None:
    (ward.inputs / "mr" / "broken.dcm").write_bytes(bytes(128) + b"DICM broken")
    assert ward.command("translate").exit_code == 1
    assert ward.command("translate", "--exclude", "mr").exit_code == 0
    assert ward.command("translate", "--include", "anat").exit_code == 0


OF_SERIES = {
    "--series": ("T1w",),
    "--modality": ("CT",),
    "--min-slices": ("9",),
    "--any-modality": (),
    "--allow-uneven": (),
    "--keep-private-tags": (),
    "--show-phi": (),
}


@pytest.mark.parametrize("command", ["translate", "plan", "discover", "submit"])
def test_an_option_of_dicom_in_a_night_without_dicom_is_a_note(
    tmp_path: Path, command: str
) -> None:
    """A nightly command does not depend on what arrived that day."""
    world = QueueWorld(tmp_path)
    world.scans(1)
    known = world.run(command, "--help").stdout
    typed = [name for name in OF_SERIES if name in known]
    words = [word for name in typed for word in (name, *OF_SERIES[name])]
    done = world.command(command, *words)
    assert done.exit_code == 0, done.stderr
    note = "note: the inputs contain no DICOM series; these options had no effect: "
    (line,) = [each for each in done.stderr.splitlines() if "DICOM" in each]
    assert set(line.removeprefix(note).split(", ")) == set(typed)
    assert (command == "discover") == ("--keep-private-tags" not in typed)
    Phantom("CT").write(world.inputs / "ct")
    assert note not in world.command(command, *words).stderr


def test_a_config_file_and_a_quiet_night_note_no_option_of_dicom(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    world.scans(1)
    file = world.folder / "c.toml"
    file.write_text('[translate]\nseries = "T1w"\nmodality = "CT"\nallow-uneven = true\n')
    paths = [str(world.inputs), "--model", str(world.model), "--output", str(world.output)]
    done = world.run("--config", str(file), "plan", *paths)
    assert done.exit_code == 0
    assert "DICOM" not in done.stderr
    quiet = world.run("translate", *paths, "--series", "T1w", "--quiet")
    assert (quiet.exit_code, quiet.stderr) == (0, "")


def test_results_below_the_inputs_and_beside_the_scan_are_skipped(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    world.scans(1)
    paths = [str(world.inputs), "--model", str(world.model), "--output"]
    assert world.run("translate", *paths, str(world.inputs / "000_T2.nii")).exit_code == 0
    again = world.run("translate", *paths, str(world.inputs / "000_T2.nii"))
    assert again.exit_code == 0
    assert "1 up to date" in again.stdout
    other = world.run("translate", *paths, str(world.folder / "other"))
    assert other.exit_code == 0
    assert "1 translated" in other.stdout


def test_repeated_search_skips_what_becomes_a_result(
    tmp_path: Path,
) -> None:
    world = QueueWorld(tmp_path)
    world.scans(2)
    options = TranslateOptions(patch=(16, 16, 16))
    request = Request((world.inputs,), world.model, world.output, options=options)
    search = request.cached_search()

    def jobs() -> list[str]:
        return [job.study for job in jobs_of(request, search).jobs]

    assert jobs() == jobs() == ["000.nii", "001.nii"]
    below = world.inputs / "deep" / "results"
    assert world.run("translate", str(world.inputs), "-m", str(world.model), "-o", str(below))
    assert (below / "000.nii").exists()
    assert jobs() == jobs() == ["000.nii", "001.nii"]
    (below / "000.nii").rename(world.inputs / "001.nii")
    assert jobs() == ["000.nii"]


def test_a_model_of_masks_takes_them(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "m.safetensors")
    edited = tmp_path / "masks.safetensors"
    world = QueueWorld(tmp_path)
    done = world.run("model", "edit", str(model), "--source", "label map", "--output", str(edited))
    assert done.exit_code == 0, done.output
    world.model = edited
    scan(world.inputs / "a_seg.nii")
    assert "1 study: 1 to translate" in world.command("plan").stdout


def test_plan_and_discover_show_what_was_read(ward: QueueWorld) -> None:
    plan = ward.command("plan").stdout
    assert any("T1w: BIDS suffix" in line for line in plan.splitlines() if "sub-01_T1w" in line)
    found = json.loads(ward.command("discover", "--model", str(ward.model), "--json").stdout)
    read = {Path(row["path"]).name: row["read_as"] for row in found["files"]}
    assert read["sub-01_T1w.nii.gz"] == "T1w: BIDS suffix"
    assert read["plain.nii"] == ""
    assert found["series"]


def test_a_pattern_that_matches_nothing_is_noted_and_changes_nothing(ward: QueueWorld) -> None:
    note = 'note: pattern "*_T7w*" of --exclude matches no scan'
    done = ward.command("plan", "--exclude", "*_T7w*")
    assert done.exit_code == 0
    assert note in done.stderr
    assert note not in ward.command("plan", "--exclude", "*_T1w*").stderr
    none = ward.command("translate", "--include", "/data/*")
    assert "patterns are relative to the input folder" in none.stderr
    assert none.exit_code == 3


def test_only_any_contrast_takes_what_contradicts(ward: QueueWorld) -> None:
    matched = ward.command("plan", "--include", "*_T2w*")
    assert "its BIDS suffix states T2 (T2w)" in matched.output
    assert matched.exit_code == 3
