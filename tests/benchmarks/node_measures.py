"""Speed of a node's reception and sending, time until results are back, its costs, and the effect
of strangers.

Run in tests/: `python -m benchmarks.node_measures [rate] [sending] [latency] [cost] [hostile]`. The
figures go into results/node_measures.json.
"""

import argparse
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import pynetdicom as _pynetdicom
from benchmarks.node_chaos import Trial, derived_series, push, shares_of, wait_for
from support.dicom_judges import judge
from support.dicom_network import associate_request, pdu
from support.dicom_pacs import Pacs, orthanc, receiver
from support.dicom_phantoms import Phantom
from support.node_world import NodeWorld, phantom
from support.ports import reserved_port

from cuda_cyclegan.io.dicom_network.negotiation import IMAGES, PLAIN
from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.io.dicom_network.sending import sending_to
from cuda_cyclegan.io.files.disk import flush

pynetdicom: Any = _pynetdicom
RESULTS = Path(__file__).parent / "results" / "node_measures.json"
QUIET = 0.5


def rate(folder: Path, objects: int = 400) -> dict[str, Any]:
    """MB/s of objects of 512 KB over the loopback, and of dcmtk's storescp beside it."""
    os.environ["TCP_NODELAY"] = "1"  # for dcmtk's programs
    large = Phantom(modality="MR", slices=objects, rows=512, columns=512)
    files = large.write(folder / "sources")
    total = sum(file.stat().st_size for file in files) / 1e6
    found: dict[str, Any] = {"objects": objects, "bytes each": files[0].stat().st_size}
    shares = {1: [files], 4: [files[at::4] for at in range(4)]}
    for place, name in ((folder, "disk"), (Path("/dev/shm"), "RAM disk")):
        for count, parts in shares.items():
            with tempfile.TemporaryDirectory(dir=place) as own:
                spent = _received(Path(own), parts)
            found[f"MB/s on a {name}, associations: {count}"] = round(total / spent)
    written = _timed(lambda: _written(folder, files))
    found["MB/s of writing and syncing alone on the disk"] = round(total / written)
    found["MB/s of storescp, which syncs nothing"] = round(total / _storescp(folder, files))
    return found


def _received(folder: Path, parts: list[list[Path]]) -> float:
    world = NodeWorld(folder, route='retry = "1 h"')
    try:
        world.start()
        return _together(world, parts)
    finally:
        world.close()


def _written(folder: Path, files: list[Path]) -> None:
    """The same bytes into files that are synced, with their names."""
    target = folder / "written"
    target.mkdir()
    for at, file in enumerate(files):
        with (target / f"{at}.part").open("wb", buffering=0) as part:
            part.write(file.read_bytes())
            os.fsync(part.fileno())
        (target / f"{at}.part").rename(target / f"{at}")
        flush(target)


def _together(world: NodeWorld, shares: list[list[Path]]) -> float:
    threads = [threading.Thread(target=world.send, args=(share,)) for share in shares]

    def run() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return _timed(run)


def _storescp(folder: Path, files: list[Path]) -> float:
    with receiver(folder / "held") as port:
        sending = [judge("storescu"), "127.0.0.1", str(port), *map(str, files)]
        return _timed(lambda: subprocess.run(sending, check=True))


def sending(folder: Path, objects: int = 500) -> dict[str, Any]:
    """Seconds to send objects of 512 KB on one association, and by pynetdicom's own requestor."""
    os.environ["TCP_NODELAY"] = "1"  # for dcmtk's programs
    files = Phantom(modality="CT", slices=objects, rows=512, columns=512).write(folder / "sources")
    found: dict[str, Any] = {"objects": objects, "bytes each": files[0].stat().st_size}
    with receiver(folder / "held") as port, orthanc(folder / "orthanc") as pacs:
        for name, to in (("storescp", port), ("Orthanc", pacs.dicom_port)):
            peer = Peer("ORTHANC", "127.0.0.1", to)
            found[f"seconds to {name}"] = [_sent(peer, files) for _ in range(3)]
            theirs = [_sent_by_pynetdicom(peer, files) for _ in range(3)]
            found[f"seconds to {name} by pynetdicom, null if an answer was lost"] = theirs
    return found


def _sent(peer: Peer, files: list[Path]) -> float:
    begin = time.monotonic()
    with sending_to(peer, "NODE") as link:
        for file in files:
            link.store(file)
    return round(time.monotonic() - begin, 2)


def _sent_by_pynetdicom(peer: Peer, files: list[Path]) -> float | None:
    pynetdicom._config.STORE_SEND_CHUNKED_DATASET = True
    entity = pynetdicom.AE("NODE")
    entity.dimse_timeout = 5
    for sop_class in IMAGES:
        entity.add_requested_context(sop_class, list(PLAIN))
    begin = time.monotonic()
    association = entity.associate(peer.host, peer.port, ae_title=peer.title, max_pdu=1 << 18)
    assert association.is_established
    for file in files:
        if "Status" not in association.send_c_store(file):
            return None
    association.release()
    return round(time.monotonic() - begin, 2)


def latency(folder: Path, series: int = 40) -> dict[str, Any]:
    """Seconds from the end of sending a series until its result is in Orthanc."""
    with orthanc(folder / "orthanc") as pacs:
        world = NodeWorld(folder, pacs.dicom_port)
        try:
            world.start()
            world.worker()
            spent = [_one_series(world, pacs, number) for number in range(series + 1)][1:]
        finally:
            world.close()
    spent.sort()
    return {
        "series": series,
        "images each": 8,
        "quiet seconds": QUIET,
        "median": round(statistics.median(spent), 2),
        "p95": round(spent[int(0.95 * len(spent))], 2),
        "longest": round(spent[-1], 2),
    }


def _one_series(world: NodeWorld, pacs: Pacs, number: int) -> float:
    files = world.phantom(number)
    before = int(pacs.ask("/statistics")["CountInstances"])
    assert world.send(files) == 0
    begin = time.monotonic()
    while int(pacs.ask("/statistics")["CountInstances"]) < before + len(files):
        time.sleep(0.02)
        assert time.monotonic() - begin < 120
    return time.monotonic() - begin


def cost(folder: Path, series: int = 1000) -> dict[str, Any]:
    """Seconds of `submit` and `worker` for the same files as from Orthanc through the node."""
    with reserved_port() as port, orthanc(folder / "orthanc", {"T1TOT2": port}) as pacs:
        world = NodeWorld(folder, pacs.dicom_port, port=port)
        world.configure(callers="ORTHANC@127.0.0.1")
        for number in range(series):
            for file in phantom(number).write(folder / "sources" / f"{number}"):
                pacs.post("/instances", file.read_bytes())
        try:
            by_hand = _timed(lambda: _by_hand(world))
            world.start()
            worker = world.worker()
            wait_for(lambda: "waiting for jobs" in world.said())
            through_node = _timed(lambda: _through_node(pacs, series))
            worker.terminate()
        finally:
            world.close()
    return {
        "series": series,
        "images each": 8,
        "submit and worker, seconds": round(by_hand, 1),
        "from Orthanc through the node and back, seconds": round(through_node, 1),
        "added": f"{(through_node / by_hand - 1) * 100:.0f} %",
    }


def _by_hand(world: NodeWorld) -> None:
    paths = [str(world.folder / "sources"), "--model", str(world.model)]
    submitted = world.run("submit", *paths, "--output", str(world.folder / "by-hand"))
    assert submitted.returncode == 0, submitted.stderr
    worked = world.run("worker", "--device", "cpu", "--until-empty")
    assert worked.returncode == 0, worked.stderr


def _through_node(pacs: Pacs, series: int) -> None:
    pushing = [
        threading.Thread(target=push, args=(pacs, names), daemon=True)
        for names in shares_of(sorted(pacs.ask("/series")), 4)
    ]
    for thread in pushing:
        thread.start()
    wait_for(lambda: derived_series(pacs, Trial(series=series)) >= series)
    whole = 2 * series * 8
    wait_for(lambda: int(pacs.ask("/statistics")["CountInstances"]) >= whole)


def hostile(folder: Path, associations: int = 1000) -> dict[str, Any]:
    """Strangers in numbers, three times, while an honest client sends."""
    world = NodeWorld(folder, route='retry = "1 h"')
    honest: list[float] = []
    try:
        process = world.start()
        world.send(world.phantom(9999))
        before = _memory(process.pid)
        after: list[int] = []
        for _ in range(3):
            honest += _served_meanwhile(world, associations)
            wait_for(lambda: _threads(process.pid) < 20)
            after.append(_memory(process.pid))
        assert process.poll() is None
    finally:
        world.close()
    return {
        "hostile associations each time": associations,
        "honest series of 8 images meanwhile": len(honest),
        "seconds for one, median": round(statistics.median(honest), 2),
        "seconds for one, longest": round(max(honest), 2),
        "resident MiB before": before,
        "resident MiB after each time": after,
    }


def _served_meanwhile(world: NodeWorld, associations: int) -> list[float]:
    """Seconds of each honest series that is sent while strangers come."""
    attackers = [
        threading.Thread(target=_attack, args=(world.port, part, associations // 20))
        for part in range(20)
    ]
    for thread in attackers:
        thread.start()
    spent: list[float] = []
    while any(thread.is_alive() for thread in attackers) or len(spent) < 5:
        files = world.phantom(len(spent))
        begin = time.monotonic()
        assert world.send(files) == 0, "an honest client was not served"
        spent.append(time.monotonic() - begin)
    return spent


def _attack(port: int, part: int, count: int) -> None:
    moments = random.Random(part)
    request = associate_request("T1TOT2", "MODALITY")
    kept: list[socket.socket] = []
    for _ in range(count):
        kind = moments.randrange(6)
        with suppress(OSError):
            link = socket.create_connection(("127.0.0.1", port), 10)
            match kind:
                case 0:
                    link.sendall(moments.randbytes(moments.randrange(1, 20000)))
                case 1:
                    link.sendall(request[: moments.randrange(1, len(request))])
                case 2:
                    link.sendall(pdu(1, moments.randbytes(1000), 0xFFFFFFF0))
                case 3:
                    kept.append(link)
                    continue
                case 4:
                    link.sendall(request)
                    link.recv(10)
                    link.sendall(pdu(4, moments.randbytes(1000), 0xFFFFFFF0))
                case _:
                    link.sendall(request)
                    link.recv(10)
                    link.sendall(pdu(4, moments.randbytes(1000)))
            link.close()
    for link in kept:
        link.close()


def _memory(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def _threads(process: int) -> int:
    return len(list(Path(f"/proc/{process}/task").iterdir()))


def _timed(do: Callable[[], object]) -> float:
    begin = time.monotonic()
    do()
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    measures = {
        "rate": rate,
        "sending": sending,
        "latency": latency,
        "cost": cost,
        "hostile": hostile,
    }
    parser.add_argument("measures", nargs="*", choices=[*measures, []], default=[*measures])
    asked = parser.parse_args()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in asked.measures:
        with tempfile.TemporaryDirectory() as folder:
            figures = measures[name](Path(folder))
        machine = f"{os.cpu_count()} cores, {platform.machine()}, other work beside it"
        known[name] = {"date": f"{date.today()}", "machine": machine, **figures}
        RESULTS.write_text(json.dumps(known, indent=2) + "\n")
        print(json.dumps(known[name], indent=2), flush=True)


if __name__ == "__main__":
    main()
