"""Free words of names and descriptions: the image that they state, and what it was made from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.io.contrast.texts import kinds_in, modality_named, read_text
from cuda_cyclegan.io.contrast.words import TABLE


def stated(text: str, *, is_description: bool = False) -> str:
    """Return what a text states, as words: open alternatives with "?", nothing as ""."""
    found = read_text(text, "its name", is_description=is_description)
    return "; ".join(f"{each.in_words}{'?' * each.is_open}" for each in found)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("T2_to_T1", "T2"),
        ("T1_to_T2", "T1"),
        ("FLAIR_in_T1_space", "FLAIR"),
        ("T2_T1space", "T2"),
        ("T2_reg_T1", "T2"),
        ("ct_reg_to_mr", "CT"),
        ("PET_to_T1_brain", "PET"),
        ("FLAIR2T1", "FLAIR"),
        ("T2toT1", "T2"),
        ("T2_to_T1_InverseWarped", "T1"),
        ("T2_to_T1_1Warp", "transform"),
        ("T2_to_T11InverseWarp", "transform"),
        ("rest_to_T1", ""),
        ("T1_to_MNI_nonlin", "T1"),
        ("reg_T1", "T1"),
        ("t2_space_sag_iso", "T2"),
        ("T1_T2", "T1 and T2"),
        ("CT_T1", "CT and T1"),
        ("CT_from_MR", "synthetic image; CT and MR"),
    ],
)
def test_the_moving_image_is_the_contrast_and_its_target_a_space(text: str, kinds: str) -> None:
    assert stated(text) == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("T1", "T1"),
        ("t2_dark-fluid", "FLAIR"),
        ("T2FLAIR", "FLAIR"),
        ("T2*_gre", "T2*"),
        ("T2_star", "T2*"),
        ("AX_T2_GRE", "T2*"),
        ("t2_tirm_cor_stir", "STIR"),
        ("t2_space_DIR_sag", "DIR"),
        ("DTI_64_dir_AP", "diffusion"),
        ("T1_FLAIR", "FLAIR or T1?"),
        ("CBCT_CT", "CBCT"),
        ("cone-beam CT", "CBCT"),
        ("CTres", "CT"),
        ("dCBCT", "CBCT"),
        ("sT1W_3D_TFE", "T1"),
        ("MR_T1", "T1"),
        ("mp2rage_UNI", "T1"),
        ("mp2rage_INV2", "MP2RAGE inversion"),
        ("mp2rage_T1_Images", "quantitative map"),
        ("mp2rage", "MP2RAGE or T1?"),
        ("t1_mprage_opp-phase", "T1"),
        ("SpinEchoFieldMap_AP", "field map"),
        ("EPI_PE=AP_3", "EPI"),
        ("noPF_AP_8", "EPI"),
        ("PA_007", ""),
        ("PD_007", "PD?"),
        ("pd+t2_tse", "PD or T2?"),
        ("petra_spectrum_ctx", ""),
        ("", ""),
    ],
)
def test_words_name_a_contrast_together(text: str, kinds: str) -> None:
    assert stated(text) == kinds


@pytest.mark.parametrize(
    ("text", "name", "description"),
    [
        ("T1_post", "T1ce", "T1ce"),
        ("post_T1", "T1 or T1ce?", "T1ce"),
        ("T1_postop", "T1", "T1"),
        ("T1+C", "T1ce", "T1ce"),
        ("AX T1 SE C+", "T1ce", "T1ce"),
        ("T1 w/o contrast", "T1", "T1"),
        ("T1_pre", "T1", "T1"),
        ("T1 KM", "T1ce", "T1ce"),
        ("ct1", "T1ce", "T1ce"),
        ("T1_Gd", "T1ce", "T1ce"),
        ("T2_Gd", "T2", "T2"),
        ("T1_hippocampus", "mask", "T1"),
        ("HighResHippocampus T2", "T2", "T2"),
        ("T2_TSE_cor_hippocampus", "T2 or mask?", "T2"),
    ],
)
def test_agents_and_structures(text: str, name: str, description: str) -> None:
    assert stated(text) == name
    assert stated(text, is_description=True) == description


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("T1_pve_0", "mask"),
        ("T1_brain_mixeltype", "mask"),
        ("T1_label-lesion_roi", "mask"),
        ("BrainSegmentation", "mask"),
        ("tumorSeg", "mask"),
        ("Brain Mask", "mask"),
        ("T1_lesion", "mask"),
        ("T1_lesion_filled", "T1"),
        ("t1_skull_strip", "T1"),
        ("T1_roi", "T1"),
        ("maskless_T1", "T1"),
        ("unmasked", ""),
        ("segovia_01", ""),
        ("T1_tstat1", "statistic"),
        ("DTI_eddy_FA", "diffusion map"),
        ("T1_fa_15", "T1"),
        ("T1wDividedByT2w", "quantitative map"),
        ("T1_fast_bias", "bias field"),
        ("T1_bias", "T1 or bias field?"),
        ("T1W3D_301_ph", "phase"),
        ("sCT", "synthetic image; CT"),
        ("synT1", "synthetic image; T1"),
        ("fake_T2", "synthetic image; T2"),
        ("brain.dscalar", "CIFTI file"),
    ],
)
def test_masks_maps_and_synthetic_images_are_no_scans(text: str, kinds: str) -> None:
    assert stated(text) == kinds


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("T1w MRI", {"T1"}),
        ("T2 FLAIR", {"FLAIR"}),
        ("PET/CT", {"PET", "CT"}),
        ("sCT", {"CT"}),
        ("tumour mask", {"mask"}),
        ("ADC", {"diffusion map"}),
        ("domain A", set()),
    ],
)
def test_a_source_is_read_by_the_same_table(words: str, kinds: set[str]) -> None:
    assert kinds_in(words) == kinds


@pytest.mark.parametrize(
    ("target", "modality"),
    [("T1", "MR"), ("sCT", "CT"), ("FDG-PET", "PT"), ("CT (from MR)", "OT"), ("domain A", "XX")],
)
def test_a_target_names_a_modality(target: str, modality: str) -> None:
    assert modality_named(target, "XX", "OT") == modality


@given(st.lists(st.sampled_from([*TABLE, "x", "7", "AP", "space"]), max_size=6), st.booleans())
def test_any_words_state_kinds_or_nothing(words: list[str], is_description: bool) -> None:
    for each in read_text("_".join(words), "its name", is_description=is_description):
        assert each.kinds
        assert all(each.kinds)
