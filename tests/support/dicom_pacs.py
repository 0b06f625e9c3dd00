"""Real receivers on loopback, for one test: Orthanc with its own storage, and dcmtk's storescp."""

import json
import subprocess
import urllib.request
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.dicom_judges import judge
from support.ports import reserved_port
from support.waiting import eventually


@dataclass(frozen=True)
class Pacs:
    """PACS that takes files over C-STORE and lists over REST what it holds."""

    dicom_port: int
    http_port: int
    _running: list["subprocess.Popen[bytes]"] = field(
        default_factory=list["subprocess.Popen[bytes]"], repr=False
    )

    def store(self, files: Iterable[Path]) -> None:
        """Send files; raises CalledProcessError if any is not accepted."""
        store_at(self.dicom_port, "ORTHANC", files)

    def ask(self, path: str) -> Any:
        """The JSON answer of the REST interface."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}") as answer:
            return json.load(answer)

    def post(self, path: str, body: Any) -> Any:
        """The JSON answer to a request of the REST interface; raises HTTPError."""
        return json.loads(self.posted(path, body))

    def posted(self, path: str, body: Any) -> bytes:
        """The same as it came."""
        url = f"http://127.0.0.1:{self.http_port}{path}"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data)) as answer:
            return answer.read()

    def delete(self, path: str) -> None:
        """Delete what the REST interface has at a path."""
        url = f"http://127.0.0.1:{self.http_port}{path}"
        urllib.request.urlopen(urllib.request.Request(url, method="DELETE")).close()

    def start(self, folder: Path) -> None:
        """Start it with what its folder holds, and wait until it answers."""
        with (folder / "log").open("ab") as log:
            command = [judge("Orthanc"), folder / "orthanc.json"]
            self._running.append(subprocess.Popen(command, stdout=log, stderr=log))
        _wait(self, self._running[-1], folder / "log")

    def stop(self) -> None:
        """End it in order."""
        self._running[-1].terminate()
        self._running[-1].wait()

    def kill(self) -> None:
        """End it at once."""
        self._running[-1].kill()
        self._running[-1].wait()

    def series_by_study(self) -> dict[str, dict[str, int]]:
        """Return how many instances each series of each study has, by their DICOM UIDs."""
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
def receiver(folder: Path, *options: str) -> Generator[int]:
    """Run storescp, which stores what it is sent in `folder`; its port."""
    folder.mkdir()
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        command = [judge("storescp"), *options, "--output-directory", folder, str(port)]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        stack.callback(process.terminate)

        def answers() -> bool:
            assert process.poll() is None, "storescp did not start"
            echo = [judge("echoscu"), "127.0.0.1", str(port)]
            return not subprocess.run(echo, capture_output=True, check=False).returncode

        eventually(answers)
        yield port


@contextmanager
def query_archive(folder: Path, peers: Mapping[str, int]) -> Generator[int]:
    """Run dcmqrscp, an archive for C-STORE, C-FIND and C-MOVE with the AE title ARCHIVE; its port.

    peers: ports of this machine that it can send to, by their AE titles.
    """
    (folder / "ARCHIVE").mkdir(parents=True)
    hosts = "".join(f"{title} = ({title}, 127.0.0.1, {port})\n" for title, port in peers.items())
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        (folder / "dcmqrscp.cfg").write_text(
            f"NetworkTCPPort = {port}\nMaxPDUSize = 16384\nMaxAssociations = 16\n"
            f"HostTable BEGIN\n{hosts}HostTable END\nVendorTable BEGIN\nVendorTable END\n"
            f"AETable BEGIN\nARCHIVE {folder / 'ARCHIVE'} RW (200, 1024mb) ANY\nAETable END\n"
        )
        log = stack.enter_context((folder / "log").open("ab"))
        command = [judge("dcmqrscp"), "-v", "-c", folder / "dcmqrscp.cfg"]
        process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        stack.callback(process.kill)

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            echo = [judge("echoscu"), "-aec", "ARCHIVE", "127.0.0.1", str(port)]
            return not subprocess.run(echo, capture_output=True, check=False).returncode

        eventually(answers)
        yield port


def store_at(port: int, title: str, files: Iterable[Path]) -> None:
    """Send files by storescu; raises CalledProcessError if any is not accepted."""
    command = [judge("storescu"), "-aec", title, "127.0.0.1", str(port)]
    subprocess.run([*command, *files], check=True, capture_output=True)


@contextmanager
def orthanc(
    folder: Path, peers: Mapping[str, int] | None = None, **more: object
) -> Generator[Pacs]:
    """Run Orthanc in `folder` for a test, and kill it: to end in order would take it 3.5 s.

    peers: ports of this machine that it can send to, by their AE titles. more: its
    further configuration.
    """
    judge("Orthanc")
    folder.mkdir()
    with reserved_port() as dicom_port, reserved_port() as http_port:
        pacs = Pacs(dicom_port, http_port)
        _configure(pacs, folder, peers or {}, more)
        try:
            pacs.start(folder)
            yield pacs
        finally:
            pacs.kill()


DICOMWEB = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")


def web_options() -> dict[str, object]:
    """Configuration of Orthanc with its plug-in for DICOMweb, below /dicom-web."""
    if not DICOMWEB.exists():
        pytest.skip("orthanc-dicomweb is not installed")
    return {"Plugins": [str(DICOMWEB)], "DicomWeb": {"Enable": True, "Root": "/dicom-web/"}}


def _configure(
    pacs: Pacs, folder: Path, peers: Mapping[str, int], more: Mapping[str, object]
) -> None:
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
        "DicomModalities": {
            title: {"AET": title, "Host": "127.0.0.1", "Port": port}
            for title, port in peers.items()
        },
        "StableAge": 1,
        "Plugins": [],
        **more,
    }
    (folder / "orthanc.json").write_text(json.dumps(configuration))


def _wait(pacs: Pacs, process: "subprocess.Popen[bytes]", log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, f"Orthanc did not start: {log.read_text()}"
        with suppress(OSError):
            pacs.ask("/system")
            return True
        return False

    eventually(answers)
