"""`--spread N`: the result as ever, maps beside it, and figures wherever studies are reported."""

import json
import re
import shutil
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from PIL import Image
from support.batch_world import scan, stored, tiny_model
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_judges import conformance_errors
from support.dicom_phantoms import PATIENT, Phantom
from support.pages import json_in
from support.queue_world import QueueWorld
from support.result_marks import read_mark
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.io.formats.registry import SUFFIXES, suffix_of
from cuda_cyclegan.pipelines.dry_run import dry_run
from cuda_cyclegan.pipelines.rates import Work
from cuda_cyclegan.pipelines.request import Request
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.translate import open_job

nibabel: Any = _nibabel
sitk: Any = _SimpleITK
MR = Phantom("MR", slices=16, intercept=0.0)


class World:
    """Scans, a model, and an output folder that is not there yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs, self.output = root / "scans", root / "results"
        self.model = tiny_model(root / "model.safetensors")

    def run(self, command: str, *options: str) -> Result:
        words = [command, self.inputs, "--model", self.model, "--output", self.output]
        return CliRunner().invoke(app, [*map(str, words), "--device", "cpu", *options])

    def rows(self, *options: str) -> list[dict[str, Any]]:
        report = self.root / "report.json"
        report.unlink(missing_ok=True)
        self.run("translate", *options, "--report", str(report))
        return json.loads(report.read_text())["studies"]

    def files(self) -> dict[str, bytes]:
        """Everything below the output folder, without pictures."""
        return {
            str(path.relative_to(self.output)): path.read_bytes()
            for path in sorted(self.output.rglob("*"))
            if path.is_file() and path.suffix != ".png"
        }


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    scan(made.inputs / "a.nii.gz")
    scan(made.inputs / "sub" / "b.nii", seed=1)
    return made


def of_every_kind(world: World) -> None:
    for name in ("c.hdr", "d.nrrd", "e.mha", "f.mhd"):
        sitk.WriteImage(sitk.ReadImage(world.inputs / "sub" / "b.nii"), world.inputs / name)
    MR.write(world.inputs / "mr")
    write_enhanced(replace(MR, series="1.2.3.9", number=5), world.inputs / "enhanced" / "one.dcm")


def is_of_map(name: str) -> bool:
    return ".map-" in name


@pytest.mark.slow
def test_results_of_every_kind_have_the_bytes_that_they_have_without(world: World) -> None:
    of_every_kind(world)
    assert world.run("translate").exit_code == 0
    alone = world.files()
    shutil.rmtree(world.output)
    done = world.run("translate", "--spread", "3")
    assert done.exit_code == 0, done.output
    beside = world.files()
    assert {name: beside[name] for name in beside if not is_of_map(name)} == alone
    maps = {name for name in beside if is_of_map(name)}
    assert {re.sub(r"/\d+\.dcm$", "", name).partition(".map-")[2] for name in maps} == {
        f"spread-{what}{suffix}"
        for what in ("mean", "sd")
        for suffix in (".nii.gz", ".nii", ".hdr", ".img", ".nrrd", ".mha", ".mhd", ".raw", "")
    }


@pytest.mark.slow
def test_maps_of_series_are_derived_series_without_a_fault(world: World) -> None:
    shutil.rmtree(world.inputs)
    of_series = world.inputs / "mr", world.inputs / "enhanced" / "one.dcm"
    MR.write(of_series[0])
    write_enhanced(replace(MR, series="1.2.3.9", number=5), of_series[1])
    assert world.run("translate", "--spread", "2").exit_code == 0
    files = [path for path in world.output.rglob("*.dcm") if is_of_map(str(path.parent))]
    assert len({path.parent for path in files}) == 4
    assert len(files) == 4 * MR.slices
    for path in (files[0], files[-1], *(f for f in files if f.name == "0007.dcm")):
        assert conformance_errors(path) == set()
    first = world.files()
    shutil.rmtree(world.output)
    world.run("translate", "--spread", "2")
    assert world.files() == first


def test_results_and_maps_say_what_they_are(world: World) -> None:
    sitk.WriteImage(sitk.ReadImage(world.inputs / "sub" / "b.nii"), world.inputs / "c.mha")
    assert world.run("translate", "--spread", "2").exit_code == 0
    files = [path for path in world.output.rglob("*") if suffix_of(path) in SUFFIXES]
    said = {path.name: read_mark(path) for path in files}
    assert {name: mark and mark.shows for name, mark in said.items()} == {
        f"{stem}{end}{suffix}": shows
        for stem, suffix in (("a", ".nii.gz"), ("b", ".nii"), ("c", ".mha"))
        for end, shows in (
            ("", None),
            (".map-spread-mean", "spread-mean"),
            (".map-spread-sd", "spread-sd"),
        )
    }
    assert len({mark and replace(mark, shows=None) for mark in said.values()}) == 1


def test_the_report_and_the_table_show_the_spread(world: World) -> None:
    first, second = world.rows("--spread", "4")
    reported = world.run("translate", "--spread", "4", "--overwrite").stdout
    assert re.search(r"peak RAM +spread +status", reported)
    assert "Spread: mean over the foreground of the standard deviation" in reported
    for row, name in ((first, "a.map-spread-{}.nii.gz"), (second, "sub/b.map-spread-{}.nii")):
        places = [str(world.output / name.format(what)) for what in ("mean", "sd")]
        assert row["maps"] == places
        deviation = nibabel.load(places[1]).get_fdata()
        assert deviation.min() >= 0
        assert deviation.min() < row["spread"]["deviation"] < deviation.max()
        assert row["spread"]["flips"] == 4
        assert f"{row['spread']['deviation']:.3g}" in reported
    report = json.loads((world.root / "report.json").read_text())
    worst = max(row["spread"]["deviation"] for row in (first, second))
    assert report["totals"]["worst_spread"] == worst
    assert world.rows("--overwrite")[0]["spread"] is None


def test_the_page_has_a_column_and_the_map_beside_the_result(world: World) -> None:
    world.rows("--spread", "2", "--preview")
    page = world.root / "page.html"
    report = [str(world.root / "report.json"), "--html", str(page)]
    assert CliRunner().invoke(app, ["report", *report]).exit_code == 0
    text = page.read_text()
    assert "Spread" in [measure["title"] for measure in json_in(text)["measures"]]
    assert len(json_in(text, "pictures")) == 2


def test_an_earlier_result_is_made_again_for_maps_that_it_has_not(world: World) -> None:
    assert {row["due"] for row in world.rows()} == {None}
    for options, due, status in (
        (["--spread", "2"], "it has no map spread-mean yet", "translated"),
        (["--spread", "2"], None, "up to date"),
        (["--spread", "3"], "the settings of a map changed", "translated"),
        ([], None, "up to date"),
    ):
        rows = world.rows(*options)
        assert {(row["due"], row["status"]) for row in rows} == {(due, status)}
    assert all(len(row["maps"]) == 2 and row["spread"]["flips"] == 3 for row in rows)
    world.rows("--blend", "constant")
    assert not any(map(is_of_map, world.files()))


def test_one_report_of_several_runs_keeps_the_figures(world: World) -> None:
    report = str(world.root / "kept.json")
    for _ in range(2):
        world.run("translate", "--spread", "2", "--report", report)
    [first, second] = json.loads(Path(report).read_text())["studies"]
    assert first["status"] == second["status"] == "translated"
    assert first["spread"]["flips"] == 2
    assert len(first["maps"]) == 2


@pytest.mark.slow
def test_a_picture_that_is_drawn_later_shows_the_same(world: World) -> None:
    of_every_kind(world)
    world.run("translate", "--spread", "2", "--preview")
    pictures = {path: path.read_bytes() for path in world.output.rglob("*.png")}
    assert len(pictures) == 8
    for path in pictures:
        path.unlink()
    done = world.run("translate", "--spread", "2", "--preview")
    assert "8 previews drawn from existing files" in done.stdout, done.output
    for path, before in pictures.items():
        if path.name.startswith("series"):  # which stores maps in 16 bits
            pair = [np.asarray(Image.open(each), int) for each in (path, BytesIO(before))]
            assert np.abs(pair[0] - pair[1]).max() <= 2
        else:
            assert path.read_bytes() == before


@pytest.mark.slow
def test_nobody_takes_maps_for_scans_or_for_results(world: World) -> None:
    world.run("translate", "--spread", "2")
    results, world.inputs, world.output = world.output, world.output, world.root / "again"
    done = world.run("translate", "--allow-synthetic")
    assert "2 studies" in done.stdout
    assert len(world.files()) == 2
    done = CliRunner().invoke(
        app, ["evaluate", str(results), "--truth", str(world.root / "scans"), "--any-truth"]
    )
    assert done.exit_code == 0, done.output
    assert "map" not in done.stdout
    found = CliRunner().invoke(app, ["discover", str(results)]).stdout
    assert found.count("its name marks it as a map stored with a result") == 4


@pytest.mark.process
def test_maps_of_a_series_are_no_results_to_evaluate(tmp_path: Path) -> None:
    world = World(tmp_path)
    MR.write(world.inputs)
    world.run("translate", "--spread", "2")
    done = CliRunner().invoke(
        app,
        ["evaluate", str(world.output), "--truth", str(world.inputs), "--any-truth", "--json", "-"],
    )
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["studies"]) == 1


def test_a_plan_counts_every_flip(world: World) -> None:
    scan(world.inputs / "large.nii", shape=(96, 96, 96))
    lines = {
        count: re.search(r"large\.nii +(\d+) +(\d+) MiB", world.run("plan", *options).stdout)
        for count, options in ((1, []), (2, ["--spread", "2"]), (8, ["--spread", "8"]))
    }
    patches, mebibytes = (
        {count: int(line[at]) for count, line in lines.items() if line} for at in (1, 2)
    )
    assert patches == {1: patches[1], 2: 2 * patches[1], 8: 8 * patches[1]}
    assert mebibytes[2] == mebibytes[8]
    two_maps = 2 * 4 * 96**3 / 2**20
    assert two_maps - 1 <= mebibytes[2] - mebibytes[1] <= two_maps + 4 * 96**3 / 2**20 + 1


def test_a_plan_shows_the_network_s_time_for_every_flip(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any measured batch shows it; only one with such maps shows how long their writing takes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(world.root / "cache"))

    def planned(flips: int) -> Work:
        options = TranslateOptions(spread=flips, overwrite=True)
        request = Request((world.inputs,), world.model, world.output, device="cpu", options=options)
        row = dry_run(open_job(request)).rows[0]
        assert row.cost.work
        return row.cost.work

    world.run("translate")
    plain = planned(0)
    assert planned(8) == replace(plain, network=8 * plain.network)
    world.run("translate", "--overwrite", "--spread", "2")
    assert planned(2).store != planned(0).store == plain.store


@pytest.mark.parametrize(
    ("count", "complaint"),
    [("1", "The spread of 1 is always 0; use 2 to 8"), ("9", "9 is not in the range 0<=x<=8")],
)
def test_a_number_of_flips_that_is_none_is_refused(
    world: World, count: str, complaint: str
) -> None:
    done = world.run("translate", "--spread", count)
    assert done.exit_code == 2
    assert complaint in " ".join(done.output.split())


def test_no_name_of_a_patient_is_in_what_maps_show(tmp_path: Path) -> None:
    world = World(tmp_path)
    MR.write(world.inputs)
    reported = world.run("translate", "--spread", "2", "--report", str(tmp_path / "r.json")).output
    assert PATIENT not in reported + (tmp_path / "r.json").read_text()
    assert not any(PATIENT in str(path) for path in world.output.rglob("*"))


def test_jobs_make_maps_too(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    world.scans(2)
    batch = world.submit("--spread", "2")
    world.work()
    assert {job["state"] for job in world.jobs(batch)} == {"done"}
    for job in world.jobs(batch):
        assert job["result"]["spread"]["flips"] == 2
        assert [Path(place).name.partition(".map-")[2] for place in job["result"]["maps"]] == [
            "spread-mean.nii",
            "spread-sd.nii",
        ]
    by_jobs = {path.name: path.read_bytes() for path in world.output.iterdir() if path.is_file()}
    assert len(by_jobs) == 6
    shutil.rmtree(world.output)
    world.command("translate", "--spread", "2", "--device", "cpu")
    by_hand = {path.name: path.read_bytes() for path in world.output.iterdir() if path.is_file()}
    assert by_hand == by_jobs
    again = world.submit("--spread", "2")
    world.work()
    assert [job["result"]["status"] for job in world.jobs(again)] == ["up to date"] * 2
    report = tmp_path / "summary.json"
    world.did("jobs", "summary", batch, "--report", str(report))
    assert json.loads(report.read_text())["studies"][0]["spread"]["flips"] == 2


def test_flip_of_a_symmetric_scan_gives_the_mirrored_result(
    tmp_path: Path,
) -> None:
    """The deviation is then known from the result alone, in its unit."""
    world = World(tmp_path)
    half = np.random.default_rng(0).integers(0, 1000, (8, 16, 16)).astype(np.int16)
    stored(world.inputs / "a.nii", np.concatenate([half, half[::-1]]))
    [row] = world.rows("--spread", "2")
    given = nibabel.load(world.output / "a.nii").get_fdata()
    deviation = nibabel.load(world.output / "a.map-spread-sd.nii").get_fdata()
    mirrored = np.abs(given - given[::-1]) / np.sqrt(2)
    np.testing.assert_allclose(deviation, mirrored, rtol=0, atol=1)
    assert row["spread"]["deviation"] == pytest.approx(mirrored.mean(), rel=0.2)
