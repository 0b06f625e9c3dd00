"""`node`: what it says of wrong routes, destinations and folders, its signals, and its state."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.batch_world import tiny_model
from support.dicom_network import archive
from support.dicom_pacs import orthanc
from support.dicom_phantoms import PATIENT, PATIENT_ID
from support.node_world import NodeWorld, phantom
from support.ports import reserved_port
from support.waiting import ENOUGH
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.commands.queue.node import _Control
from cuda_cyclegan.cli.options.routes import _source
from cuda_cyclegan.cli.signals import handling_stop_signals
from cuda_cyclegan.io.dicom_network.limits import WebLimits

PAGE = Path(__file__).parents[4] / "docs" / "node.md"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NodeWorld]:
    found = NodeWorld(tmp_path)
    try:
        yield found
    finally:
        found.close()


def run(world: NodeWorld, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["--config", str(world.config), *arguments])


def test_check_names_who_does_not_answer(world: NodeWorld) -> None:
    silent = run(world, "node", "--check")
    assert silent.exit_code == 1
    assert f"PACS@127.0.0.1:{world.destination} (T1TOT2): nothing answers" in silent.stdout
    with archive(port=world.destination):
        refused = run(world, "node", "--check")
    assert refused.exit_code == 1
    assert "it does not recognise the calling AE title" in refused.stdout


def test_check_is_content_with_destinations_that_answer(world: NodeWorld) -> None:
    world.config.write_text(world.config.read_text().replace("route.T1TOT2", "route.NODE"))
    with archive(port=world.destination):
        done = run(world, "node", "--check")
    assert (done.exit_code, done.stdout.count("answers")) == (0, 1)
    assert "NODE: model T1 to T2, found\n" in done.stdout


@pytest.mark.parametrize(
    ("peers", "reported"),
    [(["T1TOT2"], "answers"), ([], "it aborted the association")],
)
@pytest.mark.process
def test_check_searches_at_a_source(
    peers: list[str], reported: str, world: NodeWorld, tmp_path: Path
) -> None:
    with orthanc(tmp_path / "pacs", dict.fromkeys(peers, world.port)) as pacs:
        world.configure(f'source = "ORTHANC@127.0.0.1:{pacs.dicom_port}"')
        done = run(world, "node", "--check")
    assert f"source ORTHANC@127.0.0.1:{pacs.dicom_port} (T1TOT2): {reported}\n" in done.stdout


def test_check_rejects_a_route_whose_model_does_not_exist(world: NodeWorld) -> None:
    world.config.write_text(world.config.read_text().replace("model.safetensors", "none"))
    done = run(world, "node", "--check")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"Model {world.folder / 'none'} does not exist" in done.stderr


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (
            "speed = 3",
            "[route.T1TOT2] speed is not known; known are allow-synthetic, allow-uneven",
        ),
        ("overlap = 2.0", "[route.T1TOT2] overlap: "),
        ('channel = ["T1"]', "'T1' is not a channel name and pattern such as T1=*_mprage"),
        ('patch = "big"', "[route.T1TOT2] '--patch': 'big' is not three extents"),
        ('hold = "3 weeks"', "'hold': '3 weeks' is not a duration such as '30 s'"),
        ("keep = 30", "'keep': '30' is not a duration such as '30 s'"),
        ('keep = "soon"', "'soon' is not a duration such as '30 s'"),
        ('tls = "yes"', "tls must be true or false"),
        ("reject-superseded = 1", "reject-superseded must be true or false"),
        ("tls = true", "sends over TLS, which needs --tls-certificate"),
        ('window = "noon"', "is not a time window"),
        ('modality = "1"', "not a list of modalities"),
        (
            'modality = "MR,MRI"',
            "[route.T1TOT2] MRI is not a modality code of DICOM (PS3.16 CID 33)",
        ),
        ('modality = "mri"', "use MR."),
        ('modality = "CTA"', "use CT."),
        ('modality = "PET"', "use PT."),
        ('modality = "SPECT"', "use one such as CT, MR or PT."),
        ('batch-name = "%H"', "'%H' is not a date field"),
        ('commitment = "soon"', "'commitment': 'soon' is not a duration such as '30 s'"),
        ("allow-uneven = 1", "allow-uneven must be true or false"),
        ("strict-input = true", "[route.T1TOT2] Model tiny was not calibrated"),
        ('source-object-limit = "1GiB"', "source-object-limit is for a route with a source"),
        ('source = "http://pacs"\nsource-object-limit = "big"', "'big' is not a size such as"),
        ('source = "http://pacs"\nsource-list-limit = 0', "must be a whole number from 1 on"),
        ('source = "http://pacs"\nsource-list-limit = true', "must be a whole number from 1 on"),
        ('source = "PACS:104"', "'PACS:104' is not TITLE@HOST:PORT"),
        (
            'source = "PACS@pacs:104"\nsource-object-limit = "1GiB"',
            "source-object-limit is for a DICOMweb source; what TITLE@HOST:PORT sends is limited",
        ),
        (
            'source = "PACS@pacs:104"\nsource-token = "token"',
            "a token is for a source whose URL begins with https://",
        ),
        (
            'source = "PACS@pacs:104"\nsource-token-url = "https://idp/token"\n'
            'source-client-id = "me"\nsource-client-secret-file = "secret"',
            "a token is for a source whose URL begins with https://",
        ),
        (
            'source = "PACS@pacs:104"\nsource-query = "Modality=MR"',
            "source-query has Modality, which cannot select studies by C-FIND; known "
            "are StudyDate, StudyTime, StudyDescription",
        ),
    ],
)
def test_a_route_that_cannot_be_is_refused_by_name(
    world: NodeWorld, line: str, reported: str
) -> None:
    world.configure(line)
    done = run(world, "node")
    assert done.exit_code == 2
    assert reported in done.stderr


def test_storage_commitment_is_for_destinations_with_a_title(world: NodeWorld) -> None:
    text = world.config.read_text().replace("PACS@127", "https://127")
    world.config.write_text(f'{text}\ncommitment = "6 h"\n')
    done = run(world, "node")
    assert done.exit_code == 2
    assert "commitment is for a destination TITLE@HOST:PORT" in done.stderr


@pytest.mark.parametrize(
    ("option", "reported"),
    [
        (("--audit-syslog", "logs"), "--audit-syslog needs --audit."),
        (("--audit", ".", "--audit-syslog", "logs:x"), "'logs:x' is not HOST or HOST:PORT"),
        (("--audit", "/dev/null"), "The audit trail cannot be kept in /dev/null"),
    ],
)
def test_an_audit_trail_that_cannot_be_kept_is_rejected(
    world: NodeWorld, option: tuple[str, ...], reported: str
) -> None:
    done = run(world, "node", *option)
    assert done.exit_code == 2
    assert reported in " ".join(done.stderr.split())


def test_the_limits_of_a_source_are_read() -> None:
    asked = {"source": "http://pacs"}
    limited = {"source-object-limit": "2MiB", "source-list-limit": 7}
    for more, limits in ((limited, WebLimits(2 << 20, 7)), ({}, WebLimits())):
        source = _source({**asked, **more})
        assert source
        assert source.limits == limits


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        ("MODALITY@127.0.0.1", "MODALITY", "'MODALITY' is not TITLE@ADDRESS"),
        ("MODALITY@127.0.0.1", "MODALITY@host", "is not TITLE@ADDRESS"),
        ("PACS@127", "PACS127", "is not TITLE@HOST:PORT"),
        ("route.T1TOT2", "route.A-TITLE-THAT-IS-TOO-LONG", "is not an AE title"),
        ("model.safetensors", "no-model.safetensors", "no-model"),
        ("[route.T1TOT2]", "[other.T1TOT2]", "other is not known"),
    ],
)
def test_a_config_that_cannot_be_is_refused(
    world: NodeWorld, old: str, new: str, reported: str
) -> None:
    text = world.config.read_text()
    assert old in text
    world.config.write_text(text.replace(old, new))
    done = run(world, "node")
    assert done.exit_code == 2
    assert reported in done.stderr


def test_without_a_route_there_is_no_node(world: NodeWorld) -> None:
    world.config.write_text("")
    done = run(world, "node")
    assert done.exit_code == 2
    assert "No config file defines a route" in done.stderr


def test_a_folders_file_may_hold_no_route(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(world.folder / "config"))
    Path("cuda-cyclegan.toml").write_text('[route.X]\nmodel = "a"\n')
    done = CliRunner().invoke(app, ["jobs"])
    assert done.exit_code == 2
    assert "route decides who may send scans, and where results go" in done.stderr


def test_without_its_library_it_says_what_to_install(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuda_cyclegan.pipelines.errors.find_spec", lambda _: None)
    done = run(world, "node")
    assert done.exit_code == 4
    assert "pip install 'cuda-cyclegan[node]'" in done.stderr


def test_no_other_command_loads_its_library() -> None:
    program = "import sys; import cuda_cyclegan.cli.app; sys.exit('pynetdicom' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.process
def test_a_node_stops_in_order_reads_its_routes_again_and_shows_its_state(
    world: NodeWorld,
) -> None:
    process = world.start()
    world.wait_for("listening at 127.0.0.1")
    second = world.run("node")
    assert second.returncode == 2
    assert "Another node uses folder" in second.stderr
    files = phantom(0).write(world.folder / "sources")
    assert world.send(files, title="OTHER") != 0
    world.config.write_text(world.config.read_text().replace("route.T1TOT2", "route.OTHER"))
    process.send_signal(signal.SIGHUP)
    world.wait_for("1 route reloaded")
    assert world.send(files, title="OTHER") == 0, world.said()
    sound = world.config.read_text()
    world.config.write_text("[route.OTHER]\n")
    process.send_signal(signal.SIGHUP)
    world.wait_for("the routes are unchanged")
    world.config.write_text(sound)
    world.wait_for("queued as")
    found = world.status()
    assert found["schema"] == "cuda-cyclegan/node/1"
    assert found["running"] is True
    [series] = found["studies"][0]["series"]
    assert (series["state"], series["images"]) == ("queued", 8)
    assert list(series["stages"]) == ["receive", "translate"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENOUGH) == 0, world.said()
    shown = world.run("node", "--status")
    assert "1 series: 1 queued" in shown.stdout
    stopped = r"No node is running here: states are those of 20\d\d-\d\d-\d\d \d\d:\d\d; see 'jobs'"
    assert re.search(stopped + r" for finished jobs\.\nNo worker is running;", shown.stdout)
    for secret in (PATIENT, PATIENT_ID, "Jane", phantom(0).study):
        assert secret not in world.said() + shown.stdout + json.dumps(found)


@pytest.mark.process
def test_a_destination_is_tested_with_a_series_there_and_back(
    world: NodeWorld, tmp_path: Path
) -> None:
    with orthanc(tmp_path / "pacs", {"T1TOT2": 1}, DicomAlwaysAllowGet=True) as pacs:
        text = world.config.read_text()
        world.config.write_text(
            text.replace(
                f"PACS@127.0.0.1:{world.destination}", f"ORTHANC@127.0.0.1:{pacs.dicom_port}"
            )
        )
        done = run(world, "node", "--test", "T1TOT2")
        assert (done.exit_code, done.stdout.count(": done")) == (0, 3), done.stdout
        assert [list(series.values()) for series in pacs.series_by_study().values()] == [[4]]
    unknown = run(world, "node", "--test", "OTHER")
    assert (unknown.exit_code, "no route OTHER; the config file has T1TOT2" in unknown.stderr) == (
        2,
        True,
    )


@pytest.mark.process
def test_a_test_of_a_destination_ends_with_what_it_cannot(world: NodeWorld) -> None:
    silent = run(world, "node", "--test", "T1TOT2")
    refused = f"C-ECHO to PACS@127.0.0.1:{world.destination}: nothing answers"
    assert (silent.exit_code, silent.stdout.startswith(refused)) == (1, True)
    world.config.write_text(world.config.read_text().replace("route.T1TOT2", "route.NODE"))
    with archive(port=world.destination) as (_, held):
        deaf = run(world, "node", "--test", "NODE")
        assert len(held) == 4
    assert deaf.exit_code == 1
    reported = "back from PACS@127.0.0.1:{}: not possible: it does not offer C-GET; sending worked"
    assert deaf.stdout.splitlines()[-1].endswith(reported.format(world.destination))


@pytest.mark.process
def test_a_study_whose_sender_broke_off_is_held_until_it_is_released(world: NodeWorld) -> None:
    world.start()
    files = phantom(0, 12).write(world.folder / "sources")
    assert world.send(files[:8], "--abort") == 0
    world.wait_for("held until")
    shown = run(world, "node", "--status")
    figures = "8 images of the study received, the transfer broke off"
    [study] = re.findall(rf"held: (\S+): {figures}; until \S+ or 'node --release'", shown.stdout)
    wrong = run(world, "node", "--release", "T1")
    assert wrong.exit_code == 2
    assert "no study or route T1 is held" in wrong.stderr
    assert "queued as" not in world.said()
    released = run(world, "node", "--release", study)
    assert (released.exit_code, released.stdout) == (0, f"released: {study}\n")
    world.wait_for(f"the source may be incomplete: {figures}")
    [series] = world.status()["studies"][0]["series"]
    assert (series["images"], series["state"]) == (8, "queued")


def test_signals_are_handled_in_their_order_and_none_is_lost() -> None:
    control = _Control()
    with handling_stop_signals(control.handle):
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(number)
        assert [control.asked(0) for _ in range(3)] == ["read", "stop", None]


def test_a_signal_ends_the_wait_for_one() -> None:
    control = _Control()
    with handling_stop_signals(control.handle), ThreadPoolExecutor(1) as thread:
        thread.submit(os.kill, os.getpid(), signal.SIGINT)
        assert control.asked(ENOUGH) == "stop"


def test_status_of_a_folder_without_a_node_reports_it(world: NodeWorld) -> None:
    done = run(world, "node", "--status")
    assert done.exit_code == 2
    assert "No node has used folder" in done.stderr


def test_a_port_that_is_taken_is_reported(world: NodeWorld) -> None:
    with archive(port=world.port):
        done = run(world, "node")
    assert done.exit_code == 2
    reported = "another program uses it; stop that, or choose another with --port."
    assert f"cannot listen at 127.0.0.1:{world.port}: {reported}" in done.stderr


@pytest.mark.parametrize(
    ("address", "reported"),
    [
        ("192.0.2.1", "this machine has no such address; choose one of its own with --address."),
        ("nobody.invalid", "choose another with --address or --port."),
    ],
)
def test_an_address_that_cannot_be_is_reported(
    world: NodeWorld, address: str, reported: str
) -> None:
    done = run(world, "node", "--address", address)
    assert done.exit_code == 2
    assert f"cannot listen at {address}:{world.port}: " in done.stderr
    assert "while attempting" not in done.stderr
    assert reported in done.stderr


def test_the_page_s_routes_are_understood(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model.safetensors")
    [text] = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    file = tmp_path / "node.toml"
    with reserved_port() as port:
        text = text.replace("/share/t1-to-t2.safetensors", str(model))
        file.write_text(text.replace("10.0.0.9:104", f"127.0.0.1:{port}"))
        done = CliRunner().invoke(app, ["--config", str(file), "node", "--check"])
    assert done.exit_code == 1
    assert "(T1TOT2): nothing answers" in done.stdout
