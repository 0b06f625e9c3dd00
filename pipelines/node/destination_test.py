"""Test of a route's destination: an answer, a synthetic series there, and the same series back."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...io.dicom_network.errors import NetworkError
from ...io.dicom_network.retrieval import retrieve_series
from ...io.dicom_network.synthetic_series import (
    PATIENT,
    SLICES,
    pixels_of,
    series_of,
    write_synthetic_series,
)
from ...io.dicom_network.tls import Certificates
from ...io.dicom_network.web import WebPeer, web_link
from .delivery import Destination
from .routes import Route


def test_destination(
    route: Route, certificates: Certificates | None
) -> Iterator[tuple[str, str | None]]:
    """Yield each step of the test in words, with its error or None; the first error ends it.

    The series stays at the destination, under a patient name that is PATIENT. Raises
    CertificateError.
    """
    destination = Destination.of(route)
    peer = destination.peer
    with tempfile.TemporaryDirectory() as folder:
        files = write_synthetic_series(Path(folder))
        first, *_ = files.values()
        step = f"{'QIDO-RS' if isinstance(peer, WebPeer) else 'C-ECHO'} to {peer}"
        try:
            with destination.connected(certificates) as link:
                link.echo()
                yield step, None
                step = f"{SLICES} images of patient {PATIENT} to {peer}"
                for file in files.values():
                    link.store(file)
                yield step, None
        except NetworkError as error:
            yield step, str(error)
            return
        step = f"the same images back from {peer}"
        try:
            back = _fetched_back(destination, certificates, *series_of(first))
        except NetworkError as error:
            yield step, f"not possible: {error}; sending worked"
            return
        missing = files.keys() - back.keys()
        changed = [one for one, image in back.items() if image != pixels_of(files[one])]
        yield step, _trouble(missing, changed)


def _fetched_back(
    destination: Destination, certificates: Certificates | None, study: str, series: str
) -> dict[str, bytes]:
    """Return the pixels of the series' objects by their UIDs, by WADO-RS or C-GET."""
    peer = destination.peer
    if isinstance(peer, WebPeer):
        with web_link(peer, certificates) as link:
            return {one.instance: link.pixels(one) for one in link.instances(study)}
    tls = destination.tls_context(certificates)
    return retrieve_series(peer, destination.calling, tls, study, series)


def _trouble(missing: set[str], changed: Sequence[str]) -> str | None:
    if missing:
        return f"{len(missing)} of {SLICES} are missing"
    return f"{len(changed)} of {SLICES} have other pixels" if changed else None
