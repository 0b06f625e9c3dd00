"""Media types of HTTP headers, with their parameters (RFC 9110, 8.3.1)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PARAMETER = re.compile(r';\s*([!-:<>-~]+?)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s"]*))')


@dataclass(frozen=True, slots=True)
class MediaType:
    """Media type. name: type and subtype in lower case. parameters: by lower-case names."""

    name: str
    parameters: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> "MediaType":
        """Parse the value of a Content-Type header; what is malformed is missing."""
        name = text.partition(";")[0].strip().lower()
        found = _PARAMETER.findall(text)
        return cls(
            name,
            {key.lower(): re.sub(r"\\(.)", r"\1", quoted) or plain for key, quoted, plain in found},
        )

    @property
    def is_json(self) -> bool:
        """Whether it is that of JSON, DICOM's own or plain."""
        return self.name in ("application/dicom+json", "application/json")

    @property
    def is_xml(self) -> bool:
        """Whether it is that of XML, DICOM's own or plain."""
        return self.name in ("application/dicom+xml", "application/xml", "text/xml")
