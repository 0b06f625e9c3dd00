"""The command line in a report: all words, no password."""

import pytest

from cuda_cyclegan.cli.command_line import command_line


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("--model", "--model"),
        ("a=b c.nii", "a=b c.nii"),
        ("postgresql://me:PASSWORD@host/jobs", "postgresql://me:***@host/jobs"),
        ("--queue=postgresql://me:PASSWORD@host:1/jobs", "--queue=postgresql://me:***@host:1/jobs"),
        ("postgresql://host/jobs?user=me&password=PASSWORD", "postgresql://host/jobs"),
        ("postgresql://me@host/jobs?sslmode=disable", "postgresql://me@host/jobs?sslmode=disable"),
    ],
)
def test_passwords_are_left_out_and_nothing_else(word: str, kept: str) -> None:
    assert command_line(["jobs", word]) == ("cuda-cyclegan", "jobs", kept)
