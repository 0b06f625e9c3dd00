"""Translate 3D medical scans with a trained 3D CycleGAN generator.

``import cuda_cyclegan as cc``; the page docs/python.md shows how. What a name needs is loaded when
it is first asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .pipelines.api import *  # noqa: F403
    from .pipelines.api import __all__ as __all__
    from .pipelines.api import __version__ as __version__


def __getattr__(name: str) -> object:
    # pytest runs this file as no package where the clone's folder is no name of Python's.
    is_private = name.startswith("_") and name not in ("__all__", "__version__")
    if is_private or not __package__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .pipelines import api

    try:
        return getattr(api, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    from .pipelines import api

    return api.__all__
