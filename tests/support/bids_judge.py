"""The public BIDS validator; a test skips itself where it is not installed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def bids_errors(dataset: Path) -> list[str]:
    """Return what the validator calls errors in a dataset, each with its place."""
    beside = Path(sys.executable).with_name("bids-validator-deno")
    validator = str(beside) if beside.exists() else shutil.which("bids-validator-deno")
    if validator is None:
        pytest.skip("bids-validator-deno is not installed; the extra parity brings it")
    done = subprocess.run(
        [validator, dataset, "--format", "json"], capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)["issues"]["issues"]
    return [
        f"{issue['code']} {issue.get('subCode', '')} {issue.get('location', '')}"
        for issue in found
        if issue["severity"] == "error"
    ]
