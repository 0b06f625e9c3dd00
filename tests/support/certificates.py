"""Certificates for tests, under a root of their own."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from support.dicom_judges import judge

from cuda_cyclegan.io.dicom_network.tls import Certificates


def openssl(*arguments: str | Path) -> None:
    subprocess.run([judge("openssl"), *arguments], check=True, capture_output=True)


def authority(folder: Path) -> Callable[[str], Certificates]:
    """A root of its own, and what makes certificates for 127.0.0.1 under it."""
    folder.mkdir()
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    root, root_key = folder / "root.pem", folder / "root.key"
    openssl(*new, "-days", "2", "-subj", "/CN=root", "-keyout", root_key, "-out", root)

    def issue(name: str) -> Certificates:
        own, key = folder / f"{name}.pem", folder / f"{name}.key"
        signed = ("-CA", root, "-CAkey", root_key, "-addext", "subjectAltName=IP:127.0.0.1")
        ends = ("-addext", "basicConstraints=critical,CA:FALSE")
        openssl(
            *new, "-days", "2", "-subj", f"/CN={name}", *signed, *ends, "-keyout", key, "-out", own
        )
        return Certificates(own, key, root)

    return issue
