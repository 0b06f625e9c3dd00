"""What holds for every test."""

import signal
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    """A shell has what it starts in the background pass over Ctrl-C; our processes must hear it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measurements of tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
