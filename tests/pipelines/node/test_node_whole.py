"""The whole way with real peers: sent by dcmtk, translated by a worker, held by Orthanc."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.dicom_pacs import orthanc
from support.node_world import NodeWorld, phantom
from support.waiting import eventually


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NodeWorld]:
    with orthanc(tmp_path / "orthanc") as pacs:
        found = NodeWorld(tmp_path, pacs.dicom_port)
        found.pacs = pacs
        try:
            yield found
        finally:
            found.close()


def test_a_study_that_is_sent_comes_back_as_a_derived_series(world: NodeWorld) -> None:
    world.start()
    world.worker()
    assert world.send(world.phantom(0)) == 0
    eventually(lambda: world.pacs.series_by_study())
    eventually(lambda: list(world.pacs.series_by_study()[phantom(0).study].values()) == [8])
    print(world.said())
