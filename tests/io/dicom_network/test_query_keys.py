"""Matching of a study with the keys of a search, which a peer may ignore."""

import pytest

from cuda_cyclegan.io.dicom_network.query_keys import alternatives, is_match


@pytest.mark.parametrize(
    ("keyword", "pattern", "value"),
    [
        ("StudyDescription", "", ""),
        ("StudyDescription", "*", ""),
        ("StudyDescription", "brain*", "BRAIN (adult)"),
        ("StudyDescription", "Br?in", "Brain"),
        ("StudyDescription", "a+b", "A+B"),
        ("PatientName", "Doe^J*", "DOE^Jane^^^"),
        ("PatientName", "Doe^Jane^", "Doe^Jane"),
        ("StudyDate", "20260101-20260131", "20260131"),
        ("StudyDate", "-20260131", "20251231"),
        ("StudyDate", "20260101-", "20260101"),
        ("StudyDate", "20260101", "20260101"),
        ("StudyTime", "10-11", "235959"),
        ("ModalitiesInStudy", "CT,MR", "MR"),
        ("StudyInstanceUID", "1.2\\1.3", "1.3"),
    ],
)
def test_a_value_matches_its_key(keyword: str, pattern: str, value: str) -> None:
    assert is_match(keyword, pattern, value)


@pytest.mark.parametrize(
    ("keyword", "pattern", "value"),
    [
        ("StudyDescription", "brain*", ""),
        ("StudyDescription", "brain", "brain MR"),
        ("StudyDescription", "Br?in", "Bruin2"),
        ("StudyDescription", "a.b", "axb"),
        ("StudyDate", "20260101-20260131", "20260201"),
        ("StudyDate", "20260101-", ""),
        ("StudyDate", "20260101", "20260102"),
        ("ModalitiesInStudy", "CT,MR", "PT"),
        ("StudyInstanceUID", "1.2", "1.2.1"),
    ],
)
def test_another_value_does_not_match(keyword: str, pattern: str, value: str) -> None:
    assert not is_match(keyword, pattern, value)


def test_alternatives_are_separated_by_backslash_or_comma() -> None:
    assert alternatives("CT, MR\\PT") == ["CT", "MR", "PT"]
