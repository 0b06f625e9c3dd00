"""Data that pages hold for their scripts."""

import json
import re
from typing import Any


def json_in(page: str, name: str = "page-data") -> Any:
    """Data by the id of the script element that holds them."""
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page)
    assert found, name
    return json.loads(found[1])
