"""Real receivers on loopback, for one test: Orthanc with its own storage, and dcmtk's storescp."""

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.dicom_judges import judge

SECONDS_TO_START = 60


@dataclass(frozen=True)
class Pacs:
    """Takes files over C-STORE and says over REST what it holds."""

    dicom_port: int
    http_port: int

    def store(self, files: Iterable[Path]) -> None:
        """Send files; raises CalledProcessError if any is not accepted."""
        command = [judge("storescu"), "-aec", "ORTHANC", "127.0.0.1", str(self.dicom_port)]
        subprocess.run([*command, *files], check=True, capture_output=True)

    def ask(self, path: str) -> Any:
        """The JSON answer of the REST interface."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}") as answer:
            return json.load(answer)

    def series_by_study(self) -> dict[str, dict[str, int]]:
        """How many instances each series of each study has, by their DICOM UIDs."""
        found: dict[str, dict[str, int]] = {}
        for study in self.ask("/studies?expand"):
            series = [self.ask(f"/series/{name}") for name in study["Series"]]
            found[study["MainDicomTags"]["StudyInstanceUID"]] = {
                one["MainDicomTags"]["SeriesInstanceUID"]: len(one["Instances"]) for one in series
            }
        return found


def send_folder(folder: Path, port: int, *options: str) -> None:
    """Send all of a folder, as docs/dicom.md says; raises CalledProcessError."""
    where = ["-aec", "ORTHANC", "127.0.0.1", str(port), folder]
    command = [judge("storescu"), "+sd", "+r", *options, *where]
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def receiver(folder: Path) -> Generator[int]:
    """Run storescp, which stores what it is sent in `folder`; its port."""
    program, port = judge("storescp"), _free_port()
    folder.mkdir()
    command = [program, "--output-directory", folder, str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + SECONDS_TO_START
            echo = [judge("echoscu"), "127.0.0.1", str(port)]
            while subprocess.run(echo, capture_output=True, check=False).returncode:
                if time.monotonic() > until or process.poll() is not None:
                    raise RuntimeError("storescp did not start")
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()


@contextmanager
def orthanc(folder: Path) -> Generator[Pacs]:
    """Run Orthanc in `folder` until the test is through."""
    program = judge("Orthanc")
    pacs = Pacs(_free_port(), _free_port())
    folder.mkdir()
    configuration = {
        "StorageDirectory": str(folder / "storage"),
        "IndexDirectory": str(folder / "index"),
        "HttpPort": pacs.http_port,
        "DicomPort": pacs.dicom_port,
        "DicomAet": "ORTHANC",
        "DicomAlwaysAllowStore": True,
        "DicomCheckCalledAet": False,
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": False,
        "Plugins": [],
    }
    (folder / "orthanc.json").write_text(json.dumps(configuration))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, folder / "orthanc.json"], stdout=log, stderr=log)
        try:
            _wait(pacs, process, folder / "log")
            yield pacs
        finally:
            process.terminate()
            process.wait()


def _wait(pacs: Pacs, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < until and process.poll() is None:
        try:
            pacs.ask("/system")
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"Orthanc did not start: {log.read_text()}")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
