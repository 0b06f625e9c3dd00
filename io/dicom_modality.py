"""From a contrast in a model card's words to the modality of an image with that contrast."""

import re

_WORDS = {
    "CT": {"ct", "sct", "cbct", "ldct", "ncct", "cect", "cta"},
    "MR": {"mr", "mri", "smr", "t1", "t2", "t1w", "t2w", "flair", "pd", "pdw", "dwi", "adc", "swi"},
    "PT": {"pet", "pt", "fdg"},
}


def modality_of(contrast: str) -> str | None:
    """CT, MR or PT; None if the words say none of these, or several."""
    words = set(re.split(r"[^a-z0-9]+", contrast.lower()))
    found = [modality for modality, known in _WORDS.items() if words & known]
    return found[0] if len(found) == 1 else None
