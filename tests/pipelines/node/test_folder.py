"""A node's folder: one node at a time has it, and commands check whether one has it."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cuda_cyclegan.io.files.locks import lock
from cuda_cyclegan.pipelines.errors import ConfigError
from cuda_cyclegan.pipelines.node import folder
from cuda_cyclegan.pipelines.node.folder import LOCK, is_running, sole_owner


def test_a_second_node_is_refused(tmp_path: Path) -> None:
    with sole_owner(tmp_path):
        assert is_running(tmp_path)
        with pytest.raises(ConfigError, match="Another node uses folder"), sole_owner(tmp_path):
            pass
    assert not is_running(tmp_path)


def test_a_check_whether_a_node_runs_is_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check holds the lock for a moment, in which others check, and a node starts."""
    checking = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    lock(checking, shared=True)
    assert not is_running(tmp_path)
    monkeypatch.setattr(folder, "time", SimpleNamespace(sleep=lambda _: os.close(checking)))
    with sole_owner(tmp_path):
        assert is_running(tmp_path)
