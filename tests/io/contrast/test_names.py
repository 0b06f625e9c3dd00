"""File names of BIDS by their keys, of SPM by their prefix, and others by their words."""

from pathlib import Path

import pytest

from cuda_cyclegan.io.contrast.names import read_name, unlike_folders
from cuda_cyclegan.io.formats.registry import scan_stem


def stated(file: Path) -> str:
    found = read_name(file, scan_stem(file))
    return "; ".join(f"{each.in_words}: {each.by.removeprefix('its ')}" for each in found)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("sub-01_T1w.nii.gz", "T1: BIDS suffix"),
        ("sub-T2001_ses-CT_rec-CT_T1w.nii", "T1: BIDS suffix"),
        ("sub-01_space-T2w_T1w.nii", "T1: BIDS suffix"),
        ("sub-01_ce-gadolinium_T1w.nii", "T1ce: BIDS suffix"),
        ("sub-01_ce-none_T1w.nii", "T1: BIDS suffix"),
        ("sub-01_part-phase_T1w.nii", "T1: BIDS suffix; phase: BIDS entity"),
        (
            "sub-01_inv-1_MP2RAGE.nii",
            "series for a map: BIDS suffix; MP2RAGE inversion: BIDS entity",
        ),
        ("sub-01_desc-synthetic_T1w.nii", "T1: BIDS suffix; synthetic image: BIDS entity"),
        ("sub-01_desc-preproc_T1w.nii", "T1: BIDS suffix"),
        ("sub-01_acq-STIR_T2w.nii", "T2: BIDS suffix; STIR: BIDS entity"),
        (
            "sub-01_acq-fdg_pet_space-x_mask-brain_pet.nii",
            "PET: BIDS suffix; PET: BIDS entity; PET: name",
        ),
        ("sub-01_T1w_label-SC_seg.nii", "mask: BIDS entity; mask: name"),
        ("sub-01_T1w_seg-manual.nii", "mask: BIDS entity; T1: name"),
        ("sub-01_T2w_roi.nii", "T2: name; mask: name"),
        ("sub-01_boldref.nii", "functional: BIDS suffix"),
        ("sub-01_magnitude1.nii", "field map: BIDS suffix"),
        (
            "sub-01_from-T1w_to-T2w_mode-image_xfm.nii",
            "transform: BIDS suffix; transform: BIDS entity",
        ),
        ("nobias_sub-01_T1w.nii", "T1: BIDS suffix"),
        ("BiasField_sub-01_T1w.nii", "T1: BIDS suffix; bias field: name"),
        ("fake_sub-01_T1w.nii", "T1: BIDS suffix; synthetic image: name"),
        ("001_ct_lungmask.nii", "mask: name"),
        ("001_ct_dose.nii", "radiotherapy dose: name"),
        ("001_ct_low_dose.nii", "CT: name"),
        ("001_quarterdose_ct.nii", "CT: name"),
        ("wmsub-01_T1w.nii", "T1: BIDS suffix"),
        ("mwp1sub-01_T1w.nii", "mask: name"),
        ("y_sub-01_T1w.nii", "transform: name"),
        ("FLAIR_space-T1w.nii", "FLAIR: name"),
        ("p01_T1w.nii", "T1: name"),
        ("labelsTr/liver_3.nii", "mask: folder's name"),
        ("imagesTr/liver_3.nii", ""),
        ("masks/T1.nii", "T1: name"),
    ],
)
def test_names_state_a_kind_by_suffix_entities_and_words(
    name: str, reported: str, tmp_path: Path
) -> None:
    assert stated(tmp_path / "scans" / name) == reported


def test_a_prefix_of_spm_counts_next_to_its_scan(tmp_path: Path) -> None:
    (tmp_path / "scan7.nii").touch()
    (tmp_path / "mri").mkdir()
    assert stated(tmp_path / "c1scan7.nii") == "mask: name"
    assert stated(tmp_path / "y_scan7.nii") == "transform: name"
    assert stated(tmp_path / "mri" / "mwp1scan7.nii") == "mask: name"
    assert stated(tmp_path / "c1scan8.nii") == ""
    assert stated(tmp_path / "wscan7.nii") == ""


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("sub-07/anat/sub-08_T1w.nii", "its name is of sub-08, and its folder of sub-07"),
        ("sub-07/ses-1/sub-07_ses-2_T1w.nii", "its name is of ses-2, and its folder of ses-1"),
        ("sub-07/ses-1/sub-07_ses-1_T1w.nii", ""),
        ("sub-07/anat/T1w.nii", ""),
        ("anat/sub-08_T1w.nii", ""),
    ],
)
def test_a_name_of_another_subject_than_its_folder_is_noticed(name: str, reported: str) -> None:
    assert unlike_folders(Path(name), Path(name).stem) == reported
