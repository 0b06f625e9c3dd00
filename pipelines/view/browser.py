"""The user's browser, opened on a page whose address contains a secret."""

import os
import shutil
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Generator
from contextlib import contextmanager
from html import escape
from pathlib import Path

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}"><title>cuda-cyclegan view</title></head>
<body><p><a href="{url}">Open the page</a></p></body></html>
"""


@contextmanager
def opened_in_browser(url: str, failed: Callable[[str], None]) -> Generator[None]:
    """Open an address in the browser during the block, which serves it.

    The browser is given a file that leads to the address, as all users of a machine can read
    command lines: a file for this user only, in a folder of the home that is not hidden, since
    confined browsers can read no other. failed: called with the reason if no browser opens.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="cuda-cyclegan-view-", dir=Path.home()))
    except (OSError, RuntimeError) as error:
        failed(f"The browser was not opened: the home folder cannot be written ({error}).")
        yield
        return
    try:
        file = folder / "open.html"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(_PAGE.format(url=escape(url)))
        # Beside the block, as a browser in the terminal ends only when its user leaves it.
        threading.Thread(target=_open, args=(file.as_uri(), failed), daemon=True).start()
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open(address: str, failed: Callable[[str], None]) -> None:
    try:
        is_opened = webbrowser.open(address)
    except (OSError, webbrowser.Error):
        is_opened = False
    if not is_opened:
        failed("No browser could be opened; open the address yourself.")
