"""The names in a pickle that only a file made to do harm mentions, and those that any may mention.

No name is ever resolved, so these lists protect nobody; they keep a hostile file from passing as a
model with an oddity in it. Honest training states name classes, types and plain functions of all
kinds, which are carried as names and ignored. Refused is what runs code or commands, reaches other
machines, or leads to modules that do.
"""

from ...errors import CheckpointError, quoted
from .pickles import Global


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LONGEST_NAME = 500
"""Characters; the longest honest ones name nested layers behind a few wrappers, some 200."""

_RUNNING_MODULES = _words(
    """
    _interpreters _pickle _posixsubprocess _xxsubinterpreters bdb cPickle cProfile code codeop
    commands imaplib imp marshal nt os pdb pickle pkgutil popen2 posix profile pty pydoc runpy
    shutil site smtplib socket ssl subprocess sys timeit trace urllib2 venv webbrowser
    zipimport
    """
)
"""Without what lies below them: a training project may well have a folder named code or profile."""

_RUNNING_PACKAGES = _words(
    """
    asyncio cffi cloudpickle ctypes dill distutils importlib joblib multiprocessing
    numpy.distutils numpy.f2py pip torch.hub torch.package torch.utils.cpp_extension urllib
    """
)
"""With all that lies below them."""

_RUNNING_BUILTINS = _words(
    """
    __import__ apply breakpoint compile delattr eval exec execfile exit file globals help
    input intern locals open quit raw_input reload setattr vars
    """
)
_RUNNING_NAMES = _words(
    """
    _io.open _operator.call _operator.methodcaller io.open
    numpy.testing._private.utils.runstring operator.call operator.methodcaller torch.jit.load
    torch.load torch.serialization.load torch.storage._load_from_bytes types.CodeType
    types.FunctionType
    """
)
_PLAIN_RECORDS = _words(
    """
    nt.stat_result nt.terminal_size nt.times_result os.stat_result os.terminal_size
    os.times_result posix.stat_result posix.times_result posix.uname_result
    subprocess.CompletedProcess
    """
)
"""What refused modules return: a training run may note what machine it ran on."""

_GATEWAYS = _words(
    """
    __builtins__ builtins ctypes importlib marshal nt os posix pty runpy shutil socket
    subprocess sys
    """
)
"""Modules that any other may have imported: torch.os.system is os.system."""

_LOOKUPS = _words(
    """
    __builtin__.getattr _operator.attrgetter _operator.getitem _operator.itemgetter
    builtins.getattr operator.attrgetter operator.getitem operator.itemgetter
    """
)


def refuse_dangerous(name: Global) -> None:
    """Raise CheckpointError for names that only a file made to do harm mentions."""
    if len(name.module) + len(name.name) > LONGEST_NAME:
        raise CheckpointError(
            f"The checkpoint mentions a name of {len(name.module) + len(name.name)} letters, which "
            "no training state does; it is refused."
        )
    if str(name) not in _PLAIN_RECORDS and (_runs_something(name) or _leads_away(name)):
        raise CheckpointError(_refusal(quoted(str(name))))


def refuse_call_of_found(maker: str) -> None:
    """Raise CheckpointError for a call of what a lookup found, be it an attribute or an item.

    maker: the name of what made the object that is called.
    """
    if maker in _LOOKUPS:
        raise CheckpointError(_refusal(f"what {quoted(maker)} finds"))


def _runs_something(name: Global) -> bool:
    if name.module in {"builtins", "__builtin__"}:
        return name.name.partition(".")[0] in _RUNNING_BUILTINS
    return (
        name.module in _RUNNING_MODULES
        or str(name) in _RUNNING_NAMES
        or (name.module != "urllib.parse" and _is_below(name.module, _RUNNING_PACKAGES))
    )


def _leads_away(name: Global) -> bool:
    """Whether a dotted name passes through another module, or through Python's inner works."""
    parts = name.name.split(".")
    inner = len(parts) > 1 and any(p.startswith("__") and p.endswith("__") for p in parts)
    return inner or not _GATEWAYS.isdisjoint(parts)


def _is_below(module: str, packages: frozenset[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:count]) in packages for count in range(1, len(parts) + 1))


def _refusal(what: str) -> str:
    return (
        f"The checkpoint asks to run {what}, which no training state needs; "
        "it is refused and nothing was run. Do not open this file with torch.load."
    )
