"""Studies that a search finds, their order, and the places of their results."""

import os
from pathlib import Path

import pytest
from support.io_users import open_folder, ordinary_user

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.discovery import Discovery, discover
from cuda_cyclegan.io.errors import ScanError
from cuda_cyclegan.io.files.atomic import whole_file

NHDR = "NRRD0004\ntype: uchar\ndimension: 3\nsizes: 1 1 1\nencoding: raw\ndata file: {}\n"
MHD = "NDims = 3\nDimSize = 1 1 1\nElementType = MET_UCHAR\nElementDataFile = {}\n"


def lay(folder: Path, *names: str) -> Path:
    """Make files of these names, header files with the voxels that they name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = {".nhdr": NHDR, ".mhd": MHD}.get(path.suffix, "x")
        path.write_text(head.format(path.stem + ".raw"))
        if path.suffix in (".nhdr", ".mhd"):
            path.with_suffix(".raw").write_bytes(b"x")
    return folder


def names(found: Discovery) -> list[str]:
    return [str(study.name) for study in found.studies]


def search(*inputs: Path, output: Path | None = None) -> Discovery:
    return discover(inputs, output or inputs[0].parent / "missing")


def reasons(found: Discovery) -> dict[str, str]:
    return {row.path.name: row.reason for row in found.skipped}


def test_every_kind_at_any_depth_in_order(tmp_path: Path) -> None:
    scans = ("a.nii", "B.NII.GZ", "c/d.hdr", "c/d.img", "c/e/f.nrrd", "g.nhdr", "h.mha", "i.mhd")
    lay(tmp_path, *scans, "readme.txt", "c/table.csv", "sub.v1.2.nii", "x.nii.nii")
    found = search(tmp_path)
    expected = ["B.NII.GZ", "a.nii", "c/d.hdr", "c/e/f.nrrd", "g.nhdr", "h.mha", "i.mhd"]
    assert names(found) == [*expected, "sub.v1.2.nii", "x.nii.nii"]
    assert names(found) == sorted(names(found))
    assert found.skipped == ()
    files = {str(study.name): [file.name for file in study.files] for study in found.studies}
    assert files["c/d.hdr"] == ["d.hdr", "d.img"]
    assert files["g.nhdr"] == ["g.nhdr", "g.raw"]
    assert files["i.mhd"] == ["i.mhd", "i.raw"]
    assert {study.format for study in found.studies} == {"nifti", "nrrd", "metaimage"}
    assert found.ignored == 4  # readme.txt, table.csv, g.raw, i.raw


@pytest.mark.parametrize(
    "name", ["a b.nii", "名前 ü.nii.gz", "new\nline.nii", "-x.nii", "a\udce9.nii"]
)
def test_names_of_all_kinds(tmp_path: Path, name: str) -> None:
    lay(tmp_path, name)
    assert names(search(tmp_path)) == [name]
    assert names(search(tmp_path / name)) == [name]


def test_several_inputs_keep_the_tree_below_what_they_share(tmp_path: Path) -> None:
    lay(tmp_path, "in/a/x.nii", "in/b/x.nii", "in/c.nii", "other/d.nii")
    assert names(search(tmp_path / "in/a", tmp_path / "in/b")) == ["a/x.nii", "b/x.nii"]
    assert names(search(tmp_path / "in/a/x.nii", tmp_path / "in/c.nii")) == ["a/x.nii", "c.nii"]
    both = search(tmp_path / "in", tmp_path / "other")
    assert names(both) == ["in/a/x.nii", "in/b/x.nii", "in/c.nii", "other/d.nii"]


def test_one_file_given_twice_is_one_study(tmp_path: Path) -> None:
    lay(tmp_path, "in/a.nii")
    found = search(tmp_path / "in", tmp_path / "in/a.nii", tmp_path / "in")
    assert names(found) == ["a.nii"]
    assert found.skipped == ()


def test_a_relative_input_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, "in/a.nii")
    monkeypatch.chdir(tmp_path / "in")
    assert names(discover([Path()], Path("../out"))) == ["a.nii"]
    assert search(Path("a.nii")).studies[0].files == (tmp_path / "in/a.nii",)


def test_every_name_of_a_scan_is_a_study_and_loops_end(tmp_path: Path) -> None:
    lay(tmp_path, "in/z/a.nii", "far/b.nii")
    scans = tmp_path / "in"
    (scans / "again").symlink_to(scans, target_is_directory=True)
    (scans / "z" / "up").symlink_to("..", target_is_directory=True)
    (scans / "far").symlink_to(tmp_path / "far", target_is_directory=True)
    (scans / "copy.nii").symlink_to(scans / "z" / "a.nii")
    (scans / "self.nii").symlink_to(scans / "self.nii")
    (scans / "gone.nii").symlink_to(scans / "nowhere.nii")
    (scans / "annexed.nii").symlink_to("../.git/annex/objects/1/2/MD5E-s7--0.nii")
    found = discover([scans], tmp_path / "missing", Choice(links="all"))
    assert names(found) == ["copy.nii", "far/b.nii", "z/a.nii"]
    assert reasons(found) == {
        "annexed.nii": "git-annex has not fetched its content; run git annex get or datalad get",
        "gone.nii": "the link leads nowhere",
        "self.nii": "it cannot be opened: Too many levels of symbolic links",
    }


@pytest.mark.parametrize("output", ["in/out", "in/deep/out"])
def test_own_results_are_never_read_again(tmp_path: Path, output: str) -> None:
    scans = lay(tmp_path / "in", "a.nii", "deep/b.nii")
    results = lay(tmp_path / output, "a.nii", "deep/b.nii")
    (scans / "results").symlink_to(results, target_is_directory=True)
    (scans / "some results").symlink_to(results / "deep", target_is_directory=True)
    (scans / "result.nii").symlink_to(results / "a.nii")
    assert names(discover([scans], results)) == ["a.nii", "deep/b.nii"]


def test_an_output_among_the_inputs_is_left_out(tmp_path: Path) -> None:
    """A shell writes `translate scans/* --output scans/out` so the second time."""
    scans = lay(tmp_path, "a.nii", "b.nii", "out/a.nii", "out/b.nii")
    found = discover(sorted(scans.iterdir()), scans / "out")
    assert names(found) == ["a.nii", "b.nii"]
    assert reasons(found) == {"out": "it is the output folder; results are not translated again"}


def test_results_may_be_translated_on_their_own(tmp_path: Path) -> None:
    lay(tmp_path, "out/sub/a.nii")
    assert names(discover([tmp_path / "out/sub"], tmp_path / "out")) == ["a.nii"]


@pytest.mark.parametrize("link", [False, True])
def test_an_output_over_its_source_is_refused(tmp_path: Path, link: bool) -> None:
    scans = lay(tmp_path / "in", "a.nii")
    output = scans
    if link:
        output = tmp_path / "out"
        output.symlink_to(scans, target_is_directory=True)
    with pytest.raises(ScanError, match="would overwrite the scan"):
        discover([scans], output)
    with pytest.raises(ScanError, match="would overwrite the scan"):
        discover([scans / "a.nii"], output)


def test_unfinished_and_hidden_system_files_are_no_scans(tmp_path: Path) -> None:
    lay(tmp_path, "a.nii", "b.nii.part", "._a.nii", "sub.part/c.nii")
    with whole_file(tmp_path / "d.nii"):
        assert names(search(tmp_path)) == ["a.nii"]


def test_file_that_looks_like_a_scan_is_named_with_its_reason(tmp_path: Path) -> None:
    lay(tmp_path, "a.mgz", "b.img", "c.hdr", "d.brik.gz", "e.nii.bz2", "f.ZIP", "g.tar.gz", "h.mif")
    os.mkfifo(tmp_path / "pipe.nii")
    found = search(tmp_path)
    assert names(found) == []
    assert reasons(found) == {
        "a.mgz": ".mgz scans are not supported; convert it to .nii.gz",
        "b.img": "the .hdr that describes it is missing",
        "c.hdr": "its voxels are missing: c.img",
        "d.brik.gz": "the .HEAD that describes it is missing",
        "e.nii.bz2": ".bz2 files are not opened; unpack it if it contains scans",
        "f.ZIP": ".zip files are not opened; unpack it if it contains scans",
        "g.tar.gz": ".tar.gz files are not opened; unpack it if it contains scans",
        "h.mif": ".mif scans are not supported; convert it to .nii.gz",
        "pipe.nii": "it is a pipe, socket or device, not a file",
    }


def test_files_asked_for_by_name(tmp_path: Path) -> None:
    lay(tmp_path, "a.img", "a.hdr", "b.txt", "c.img")
    found = search(tmp_path / "a.img", tmp_path / "a.hdr", tmp_path / "b.txt", tmp_path / "c.img")
    assert names(found) == ["a.hdr"]
    assert reasons(found).keys() == {"b.txt", "c.hdr"}
    with pytest.raises(ScanError, match=r"gone.nii does not exist; check"):
        search(tmp_path / "gone.nii")


def test_an_image_that_a_text_header_names_is_not_reported(tmp_path: Path) -> None:
    (tmp_path / "a.mhd").write_text(MHD.format("a.img"))
    (tmp_path / "a.img").write_bytes(b"x")
    found = search(tmp_path)
    assert [study.files[1].name for study in found.studies] == ["a.img"]
    assert found.skipped == ()


def test_a_forbidden_folder_is_reported_and_the_rest_found() -> None:
    with open_folder() as folder:
        lay(folder, "a.nii", "closed/b.nii", "listed/c.nii")
        (folder / "closed").chmod(0)
        (folder / "listed").chmod(0o444)
        with ordinary_user():
            found = search(folder)
        assert names(found) == ["a.nii"]
        assert reasons(found) == {
            "closed": "the folder cannot be opened: Permission denied",
            "c.nii": "it cannot be opened: Permission denied",
        }
        for closed in ("closed", "listed"):
            (folder / closed).chmod(0o755)
