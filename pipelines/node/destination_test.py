"""Test of a route's destination: an answer, a synthetic series there, and the same series back."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...io.dicom_network.errors import NetworkError
from ...io.dicom_network.retrieval import retrieve_series
from ...io.dicom_network.sending import sending_to
from ...io.dicom_network.synthetic_series import (
    PATIENT,
    SLICES,
    pixels_of,
    series_of,
    write_synthetic_series,
)
from ...io.dicom_network.tls import Certificates
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
    peer, tls = destination.peer, destination.tls_context(certificates)
    with tempfile.TemporaryDirectory() as folder:
        files = write_synthetic_series(Path(folder))
        try:
            with sending_to(peer, destination.calling, tls) as link:
                step = f"C-ECHO to {peer}"
                link.echo()
                yield step, None
                step = f"{SLICES} images of patient {PATIENT} to {peer}"
                for file in files.values():
                    link.store(file)
                yield step, None
        except NetworkError as error:
            yield f"{peer}", str(error)
            return
        step = f"the same images back from {peer}, by C-GET"
        first = next(iter(files.values()))
        try:
            back = retrieve_series(peer, destination.calling, tls, *series_of(first))
        except NetworkError as error:
            yield step, str(error)
            return
        missing = files.keys() - back.keys()
        changed = [one for one, image in back.items() if image != pixels_of(files[one])]
        yield step, _trouble(missing, changed)


def _trouble(missing: set[str], changed: Sequence[str]) -> str | None:
    if missing:
        return f"{len(missing)} of {SLICES} are missing"
    return f"{len(changed)} of {SLICES} have other pixels" if changed else None
