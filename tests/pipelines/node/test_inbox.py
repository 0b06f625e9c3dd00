"""The inbox while studies are removed from it."""

import os
from pathlib import Path
from typing import Any

import pytest

from cuda_cyclegan.pipelines.node.inbox import Inbox, studies_in
from cuda_cyclegan.pipelines.node.records import StudyName
from cuda_cyclegan.pipelines.node.store import open_store

STUDY = StudyName("NODE", "20261122-ab")


def test_a_study_that_is_removed_while_it_is_listed_has_no_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node removes it while an association requests storage commitment, or another process
    lists.
    """
    with open_store(tmp_path, 0.0) as store:
        inbox = Inbox(tmp_path, most=0, reserve=0, store=store)
        folder, scandir = inbox.folder(STUDY), os.scandir

        def removing(place: Any = ".") -> Any:
            if str(place) == str(folder):
                folder.rmdir()
            return scandir(place)

        for list_objects in (
            lambda: inbox.objects(STUDY),
            lambda: inbox.holding("NODE", {"1.2.3"}),
            lambda: sum(studies_in(tmp_path).values()),
        ):
            folder.mkdir(parents=True)
            with monkeypatch.context() as patch:
                patch.setattr(os, "scandir", removing)
                assert not list_objects()
            assert not folder.exists()
