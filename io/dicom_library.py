"""pydicom, kept quiet: what it says about a bad value may quote a patient's data."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pydicom as _pydicom
from pydicom import errors as _errors

pydicom: Any = _pydicom  # typed only in part
InvalidDicomError: type[Exception] = _errors.InvalidDicomError

logging.getLogger("pydicom").addHandler(logging.NullHandler())
logging.getLogger("pydicom").propagate = False


@contextmanager
def quiet() -> Generator[None]:
    """Values that break a rule of their kind are taken as they are, without a word about them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
