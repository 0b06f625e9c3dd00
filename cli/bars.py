"""Bars of text."""

_FULL, _EIGHTHS = "\N{FULL BLOCK}", " ▏▎▍▌▋▊▉"


def bar(share: float, width: int) -> str:
    """A bar of up to `width` columns, to an eighth of one."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return _FULL * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
