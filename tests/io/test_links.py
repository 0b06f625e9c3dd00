"""Links that a search follows, and reports of each of the others."""

import os
from pathlib import Path

import pytest

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.discovery import Discovery, discover
from cuda_cyclegan.io.links import LEADS_OUT, LinkRule, Links, resolutions
from cuda_cyclegan.io.search import Skipped

MHD = "NDims = 3\nDimSize = 1 1 1\nElementType = MET_UCHAR\nElementDataFile = {}\n"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder with a scan in each of two folders, beside a folder with a secret one."""
    for name in ("in/a/x.nii", "in/b/y.nii", "far/secret.nii"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "in"


def search(*inputs: Path, links: Links = "inside") -> Discovery:
    return discover(inputs, None, Choice(links=links))


def names(found: Discovery) -> list[str]:
    return [str(study.name) for study in found.studies]


def missed(found: Discovery) -> dict[str, str]:
    return {skip.path.name: skip.reason for skip in found.skipped if skip.missed}


def test_links_that_lead_out_are_reported_and_followed_when_asked_for(inputs: Path) -> None:
    (inputs / "folder").symlink_to("../far")
    (inputs / "file.nii").symlink_to(inputs.parent / "far" / "secret.nii")
    (inputs / "a" / "unnamed").symlink_to("../../far/secret.nii")
    found = search(inputs)
    assert names(found) == ["a/x.nii", "b/y.nii"]
    assert missed(found) == dict.fromkeys(["folder", "file.nii", "unnamed"], LEADS_OUT)
    followed = search(inputs, links="all")
    assert missed(followed) == {}
    assert names(followed) == ["a/x.nii", "b/y.nii", "file.nii", "folder/secret.nii"]


def test_a_link_that_leads_out_on_its_way_back_in_is_inside(inputs: Path) -> None:
    (inputs.parent / "far" / "back").symlink_to(inputs / "a" / "x.nii")
    (inputs / "b" / "around.nii").symlink_to(inputs.parent / "far" / "back")
    assert missed(search(inputs)) == {}


def test_links_among_several_inputs_are_inside(inputs: Path) -> None:
    (inputs / "a" / "other").symlink_to(inputs / "b")
    assert missed(search(inputs / "a", inputs / "b")) == {}
    assert missed(search(inputs / "a")) == {"other": LEADS_OUT}


@pytest.mark.parametrize("links", ["inside", "none"])
def test_a_link_that_was_named_is_followed(inputs: Path, links: Links) -> None:
    (inputs.parent / "named").symlink_to("far")
    (inputs.parent / "scan.nii").symlink_to("far/secret.nii")
    assert names(search(inputs.parent / "named", links=links)) == ["secret.nii"]
    found = search(inputs.parent / "scan.nii", links=links)
    assert (names(found), missed(found)) == (["scan.nii"], {})


def test_links_are_each_reported_where_none_is_followed(inputs: Path) -> None:
    (inputs / "a" / "again").symlink_to("../b")
    (inputs / "out.nii").symlink_to("../far/secret.nii")
    found = search(inputs, links="none")
    assert names(found) == ["a/x.nii", "b/y.nii"]
    reported = "it is a link and is not followed"
    assert missed(found) == {"again": reported, "out.nii": reported}


@pytest.mark.parametrize("links", ["inside", "all", "none"])
@pytest.mark.parametrize("place", ["/proc/self", "/sys/kernel", "/dev/null", "/proc/self/cwd"])
def test_no_link_leads_into_the_system(inputs: Path, links: Links, place: str) -> None:
    (inputs / "link").symlink_to(place)
    (inputs / "a" / "longer").symlink_to("../link")
    reported = "it is a link into a system folder and is not followed"
    found = search(inputs, links=links)
    assert missed(found) == {"link": reported, "longer": reported}
    assert names(found) == ["a/x.nii", "b/y.nii"]
    assert missed(search(inputs / "link", links=links)) == {"link": "it leads into a system folder"}


def test_a_walk_passes_the_system_by(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's folders are not links, for instance, at the root of a disk."""
    monkeypatch.setattr("cuda_cyclegan.io.links.SYSTEM_FOLDERS", (inputs / "b",))
    found = search(inputs)
    assert names(found) == ["a/x.nii"]
    assert found.skipped == (Skipped(inputs / "b", "it is a system folder"),)
    assert names(search(inputs / "b")) == ["y.nii"]


@pytest.mark.parametrize("suffix", [".hdr", ".mhd"])
@pytest.mark.parametrize("by", ["link", "words"])
def test_the_voxels_of_a_header_lie_among_the_inputs(inputs: Path, suffix: str, by: str) -> None:
    header, voxels = inputs / f"h{suffix}", inputs / ("h.img" if suffix == ".hdr" else "h.raw")
    far = inputs.parent / "far" / "secret.nii"
    if by == "link":
        voxels.symlink_to(far)
        header.write_text(MHD.format(voxels.name))
    elif suffix == ".mhd":
        header.write_text(MHD.format("../far/secret.nii"))
    else:
        return
    found = search(inputs)
    assert "h" not in [study.name.stem for study in found.studies]
    assert f"h{suffix}" in missed(found)
    assert "h" in [study.name.stem for study in search(inputs, links="all").studies]
    assert "h" in [study.name.stem for study in search(header, far).studies]


def test_a_header_and_its_voxels_in_another_folder_of_the_inputs(inputs: Path) -> None:
    (inputs / "a" / "h.mhd").write_text(MHD.format("../b/h.raw"))
    (inputs / "b" / "h.raw").write_text("x")
    assert missed(search(inputs)) == {}
    assert "a/h.mhd" in names(search(inputs))


def test_scans_whose_links_lead_nowhere_are_missed(inputs: Path) -> None:
    (inputs / "gone.nii").symlink_to("../far/gone.nii")
    (inputs / "ring.nii").symlink_to("ring.nii")
    (inputs / ".#lock").symlink_to("user@host.1234")  # as an editor leaves one, no scan
    for links in ("inside", "none"):
        found = search(inputs, links=links)
        assert [skip.path.name for skip in found.skipped] == [".#lock", "gone.nii", "ring.nii"]
        assert missed(found).keys() == {"gone.nii", "ring.nii"}


def test_resolutions_end_where_the_system_says(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").touch()
    (tmp_path / "l").symlink_to("d")
    (tmp_path / "m").symlink_to("l/../l/f")
    assert [*resolutions(tmp_path / "m")][-1] == Path(os.path.realpath(tmp_path / "m"))
    (tmp_path / "ring").symlink_to("ring")
    assert len([*resolutions(tmp_path / "ring")]) < 50


def test_the_rule_holds_for_real_paths_of_the_inputs(inputs: Path) -> None:
    (inputs.parent / "named").symlink_to("in")
    (inputs / "a" / "again.nii").symlink_to("../b/y.nii")
    rule = LinkRule.among("inside", [inputs.parent / "named"])
    assert rule.refusal(inputs.parent / "named" / "a" / "again.nii") is None
