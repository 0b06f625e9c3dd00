"""docs/orthanc.md, followed with Debian's Orthanc."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from support.batch_world import tiny_model
from support.dicom_pacs import Pacs, orthanc
from support.node_in_process import NodeInProcess
from support.node_world import phantom
from support.waiting import eventually
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.pipelines.node.events import Received
from cuda_cyclegan.pipelines.node.routes import Caller

PAGE = (Path(__file__).parents[3] / "docs" / "orthanc.md").read_text("utf-8")


@pytest.mark.process
def test_the_script_routes_new_series_and_none_of_the_node(tmp_path: Path) -> None:
    [script] = re.findall(r"```lua\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "autoroute.lua").write_text(script.replace("T1TOT2", "NODE"))
    with NodeInProcess(tmp_path, quiet=0.0) as world:
        more = {"LuaScripts": [str(tmp_path / "autoroute.lua")]}
        with orthanc(tmp_path / "pacs", {"NODE": world.node.port}, **more) as pacs:
            world.route = replace(world.route, callers=(Caller.parse("ORTHANC@127.0.0.1"),))
            world.with_route(destination=Peer("ORTHANC", "127.0.0.1", pacs.dicom_port))
            pacs.store(phantom(0).write(tmp_path / "source"))
            eventually(lambda: world.pass_time(1) or world.states() == ["queued"])
            world.translate()
            world.wait_for_sends(1)
            [series] = pacs.series_by_study().values()
            assert sorted(series.values()) == [8, 8]
            # Orthanc calls the script for the result too, which is not sent back.
            eventually(lambda: stable_series(pacs) == 2)
            world.pass_time(1)
            assert world.states() == ["sent"]
            assert [event.objects for event in world.events(Received)] == [8]


def stable_series(pacs: Pacs) -> int:
    changes = pacs.ask("/changes")["Changes"]
    return sum(change["ChangeType"] == "StableSeries" for change in changes)


@pytest.mark.parametrize("config", re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL))
def test_the_routes_are_understood(config: str, tmp_path: Path) -> None:
    assert "T1TOT2" in tomllib.loads(config)["route"]
    model = tiny_model(tmp_path / "t1-to-t2.safetensors")
    config = re.sub(r":(4242|8042)", ":1", config).replace(f'"{model.name}"', f'"{model}"')
    (tmp_path / "node.toml").write_text(config)
    done = CliRunner().invoke(app, ["--config", str(tmp_path / "node.toml"), "node", "--check"])
    assert done.exit_code == 1
    assert "(T1TOT2): nothing answers" in done.stdout
