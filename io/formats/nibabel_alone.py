"""nibabel without pydicom, which it loads for one kind of header extension, and which takes longer
to load than nibabel itself. Those extensions are copied byte for byte here.
"""

import sys


def import_nibabel_alone() -> None:
    """Load nibabel without pydicom, unless one of them is loaded already.

    For processes of this program alone, before they have threads: other programs may use features
    that nibabel then lacks.
    """
    if "nibabel" in sys.modules or "pydicom" in sys.modules:
        return
    hidden: dict[str, object] = sys.modules  # type: ignore[assignment]
    hidden["pydicom"] = None  # for an import statement, it is not installed
    try:
        import nibabel  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        del sys.modules["pydicom"]
