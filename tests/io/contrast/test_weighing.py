"""The decision table: which evidence decides, and what causes doubts."""

import pytest

from cuda_cyclegan.io.contrast.fields import HeaderFields
from cuda_cyclegan.io.contrast.statement import Statement, Weight
from cuda_cyclegan.io.contrast.weighing import kinds_taken, weigh

BIDS, WORDS = Weight.STANDARD, Weight.WORDS


def says(*kinds: str, weight: Weight = WORDS, is_open: bool = False) -> Statement:
    return Statement(frozenset(kinds), "its name", "", weight, is_open=is_open)


def modality(kind: str) -> Statement:
    return Statement(frozenset({kind}), "its header", "", BIDS, is_coarse=True)


@pytest.mark.parametrize(
    ("source", "stated", "outcome"),
    [
        ("T1", [], "not shown"),
        ("T1", [says("T1")], "taken"),
        ("T1", [says("T2")], "refused"),
        ("T1", [says("T1", "T2")], "refused"),
        ("T1", [says("T1", "T1ce", is_open=True)], "doubtful"),
        ("T1", [says("T2", "T2*", is_open=True)], "refused"),
        ("T1", [says("PD", is_open=True)], "not shown"),
        ("T1", [says("T1", weight=BIDS), says("T2")], "doubtful"),
        ("T1", [says("T2", weight=BIDS), says("T1")], "refused"),
        ("T1", [says("T1", weight=BIDS), modality("CT")], "refused"),
        ("T1", [says("T1"), says("T2")], "refused"),
        ("T1", [modality("MR")], "not shown"),
        ("T1", [modality("MR"), says("T1")], "taken"),
        ("T1", [modality("MR"), says("diffusion")], "refused"),
        ("CT", [modality("CT")], "taken"),
        ("CT", [modality("CT"), says("CBCT")], "refused"),
        ("CT", [modality("CT"), says("T1")], "doubtful"),
        ("CBCT", [modality("CT")], "not shown"),
        ("MR", [modality("MR")], "taken"),
        ("MR", [modality("MR"), says("functional")], "refused"),
        ("MR", [says("T2*")], "taken"),
        ("MR", [says("PD", "T2", is_open=True)], "taken"),
        ("MR", [says("T1", "T2")], "doubtful"),
        ("PET/CT", [modality("PET")], "taken"),
        ("CT", [says("MR")], "refused"),
    ],
)
def test_the_heaviest_evidence_decides(source: str, stated: list[Statement], outcome: str) -> None:
    weighed = weigh(stated, kinds_taken(source))
    got = "taken" if weighed.is_shown and not weighed.doubts else "doubtful"
    got = got if weighed.is_shown or weighed.doubts else "not shown"
    assert ("refused" if weighed.against else got) == outcome


@pytest.mark.parametrize("mark", ["mask", "derived", "synthetic"])
def test_image_that_is_no_scan_is_never_taken_by_other_evidence(mark: str) -> None:
    other = Statement(frozenset({"phase"}), "its name", "", WORDS, mark)  # pyright: ignore[reportArgumentType]
    assert weigh([says("T1", weight=BIDS), other], kinds_taken("T1")).against is other


def test_words_of_a_chosen_series_cause_a_note_only() -> None:
    stated = [modality("MR"), says("T2")]
    assert weigh(stated, kinds_taken("T1")).against
    weighed = weigh(stated, kinds_taken("T1"), is_confirmed=True)
    assert weighed.against is None
    assert weighed.doubts == (stated[1],)
    assert weigh([modality("CT")], kinds_taken("T1"), is_confirmed=True).against


@pytest.mark.parametrize(
    ("source", "fields", "objections"),
    [
        ("T1", {"EchoTime": 0.003, "RepetitionTime": 2.3, "InversionTime": 0.9}, 0),
        ("T1", {"EchoTime": 0.09}, 1),
        ("T1", {"ContrastBolusIngredient": "GADOLINIUM"}, 1),
        ("T1ce", {"ContrastBolusIngredient": "GADOLINIUM"}, 0),
        ("T1", {"RepetitionTime": 5.0, "InversionTime": 2.5}, 0),
        ("T2", {"EchoTime": 0.01, "RepetitionTime": 0.5}, 2),
        ("FLAIR", {"EchoTime": 0.1, "InversionTime": 0.2}, 1),
        ("MR", {"EchoTime": 0.1}, 0),
        ("T1", {"EchoTime": "0.1", "RepetitionTime": True}, 0),
    ],
)
def test_times_and_agents_speak_against_a_source(
    source: str, fields: dict[str, object], objections: int
) -> None:
    found = list(HeaderFields.of_sidecar(fields).objections(kinds_taken(source)))
    assert len(found) == objections


@pytest.mark.parametrize(
    ("image_type", "kinds"),
    [
        (["ORIGINAL", "PRIMARY", "M", "ND"], set()),
        (["ORIGINAL", "PRIMARY", "T1", "MIXED", "PHASE"], {"T1", "phase"}),
        (["ORIGINAL", "PRIMARY", "OTHER", "FIELDMAPHZ"], {"field map"}),
        (["DERIVED", "PRIMARY", "DIFFUSION", "ADC"], {"diffusion", "diffusion map"}),
        ("ORIGINAL", set()),
        ([1, None], set()),
        (None, set()),
    ],
)
def test_the_image_type_shows_phases_and_maps(image_type: object, kinds: set[str]) -> None:
    found = HeaderFields.of_sidecar({"ImageType": image_type}).statements()
    assert {kind for each in found for kind in each.kinds} == kinds
