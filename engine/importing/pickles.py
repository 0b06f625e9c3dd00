"""Pickles read as data: nothing is imported, nothing is called, whatever the file requests.

Python's own unpickler resolves names and calls what it finds. This reader can do neither: a name
stays a `Global`, and a call becomes the value that the caller's `construct` returns for the name
and its arguments, or an `Inert` record. pickletools of the standard library decodes the opcodes.

`check_harmless` rejects names that only a malicious file mentions. No name is ever resolved, so
these lists are not what protects; they keep a hostile file from passing as a model with an oddity
in it. Honest training states name classes, types and plain functions of all kinds, which are kept
as names and ignored. Rejected are names that run code or commands, reach other machines, or lead to
modules that do.
"""

import pickletools
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from sys import intern
from typing import BinaryIO, cast

from ..errors import CheckpointError, quoted

MOST_OPCODES = 1_000_000
"""Limit of opcodes; a pair of 9-block generators with Adam takes 60 000."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VALUES = _words(
    """
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING
    UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8
    """
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


@dataclass(frozen=True, slots=True)
class Global:
    """A name that Python's unpickler would import.

    module: dotted path of its module.
    """

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Inert:
    """Placeholder of an object that was not created: name of its class or maker, and state."""

    name: str
    state: object = field(default=None, repr=False)

    @property
    def is_module(self) -> bool:
        """Whether the object would have been a torch.nn.Module."""
        state = self.state
        return (
            isinstance(state, dict)
            and {"_parameters", "_modules"} <= cast("dict[str, object]", state).keys()
        )


Construct = Callable[[Global | Inert, tuple[object, ...]], object]
"""Function that returns the value of a call, or None to leave an `Inert` in its place."""


@dataclass(slots=True)
class PickleReader:
    """Reader of consecutive pickles from a stream.

    construct: returns the value of a call of a name, or of the result of a call.
    fetch: returns the value of a persistent id.
    admit: receives every name that the pickle mentions, and may reject it.
    inert: all placeholders, in order.
    """

    construct: Construct
    fetch: Callable[[object], object]
    admit: Callable[[Global], None]
    inert: list[Inert] = field(default_factory=list[Inert])
    _stack: list[object] = field(default_factory=list[object])
    _marks: list[int] = field(default_factory=list[int])
    _memo: dict[object, object] = field(default_factory=dict[object, object])

    def read(self, stream: BinaryIO) -> object:
        """Return the next pickle's value, made of dict, list, tuple, scalars and placeholders.

        Dictionaries keep only entries whose key is a string: no others can name a tensor. Raises
        CheckpointError if the pickle is damaged or too long, or if a name is rejected.
        """
        self._stack, self._marks, self._memo = [], [], {}
        try:
            with _quiet():
                return self._read(stream)
        except ValueError as error:  # the only error of pickletools
            raise CheckpointError(
                f"The checkpoint's pickle is damaged ({error}); copy it again."
            ) from error

    def _read(self, stream: BinaryIO) -> object:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if count >= MOST_OPCODES:
                raise CheckpointError(
                    f"The checkpoint's pickle has more than {MOST_OPCODES} steps, more than any "
                    "training state."
                )
            if opcode.name == "STOP":
                return self._pop()
            self._step(opcode.name, argument)
        raise _damaged("it has no end")

    def _step(self, name: str, argument: object) -> None:
        match name:
            case "PROTO" | "FRAME":
                pass
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [self._pop() for _ in range(int(name[-1]))]
                self._push(tuple(reversed(items)))
            case "GET" | "BINGET" | "LONG_BINGET":
                self._recall(argument)
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self._remember(argument)
            case "PERSID":
                self._push(self.fetch(argument))
            case "BINPERSID":
                self._push(self.fetch(self._pop()))
            case "GLOBAL":
                self._push(self._global(*str(argument).split(" ", 1)))
            case "STACK_GLOBAL":
                named, module = self._pop(), self._pop()
                self._push(self._global(module, named))
            case "REDUCE" | "NEWOBJ":
                arguments, maker = self._pop(), self._pop()
                self._call(maker, arguments)
            case "NEWOBJ_EX":
                _, arguments, maker = self._pop(), self._pop(), self._pop()
                self._call(maker, arguments)
            case "OBJ":
                maker, *rest = self._pop_mark() or [None]
                self._call(maker, tuple(rest))
            case "INST":
                rest = self._pop_mark()
                self._call(self._global(*str(argument).split(" ", 1)), tuple(rest))
            case "BUILD":
                self._build()
            case _:
                self._step_container(name, argument)

    def _step_container(self, name: str, argument: object) -> None:
        match name:
            case _ if name in _VALUES:
                self._push(argument)
            case _ if name in _CONSTANTS:
                self._push(_CONSTANTS[name])
            case "MARK":
                self._marks.append(len(self._stack))
            case "DUP":
                self._push(self._top())
            case "POP":
                self._drop()
            case "POP_MARK":
                self._pop_mark()
            case "EMPTY_LIST" | "EMPTY_SET":
                self._push([])
            case "EMPTY_DICT":
                self._push({})
            case "LIST" | "FROZENSET":
                self._push(self._pop_mark())
            case "TUPLE":
                self._push(tuple(self._pop_mark()))
            case "DICT":
                self._push(_named(self._pop_mark()))
            case "APPEND":
                self._extend([self._pop()])
            case "APPENDS" | "ADDITEMS":
                self._extend(self._pop_mark())
            case "SETITEM":
                value, key = self._pop(), self._pop()
                self._update([key, value])
            case "SETITEMS":
                self._update(self._pop_mark())
            case _:
                raise CheckpointError(
                    f"The checkpoint's pickle uses {name}, which no checkpoint needs; it is "
                    "rejected."
                )

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _pop(self) -> object:
        if not self._stack:
            raise _damaged("a value is missing")
        return self._stack.pop()

    def _top(self) -> object:
        if not self._stack:
            raise _damaged("a value is missing")
        return self._stack[-1]

    def _pop_mark(self) -> list[object]:
        if not self._marks:
            raise _damaged("a mark is missing")
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _drop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._pop()

    def _remember(self, index: object) -> None:
        key = len(self._memo) if index is None else index
        # Honest memos count up; huge numbers could be chosen to collide in the table.
        if not isinstance(key, int) or not 0 <= key <= MOST_OPCODES:
            raise _damaged("it stores a value out of order")
        self._memo[key] = self._top()

    def _recall(self, index: object) -> None:
        if index not in self._memo:
            raise _damaged("it refers to a value that is not stored")
        self._push(self._memo[index])

    def _extend(self, items: Sequence[object]) -> None:
        target = self._top()
        if isinstance(target, list):
            cast("list[object]", target).extend(items)
        elif not isinstance(target, Inert):
            raise _damaged("items are added to an object that is not a list")

    def _update(self, items: Sequence[object]) -> None:
        target = self._top()
        if isinstance(target, dict):
            cast("dict[str, object]", target).update(_named(items))
        elif not isinstance(target, Inert):
            raise _damaged("entries are added to an object that is not a dictionary")

    def _global(self, module: object, name: object) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise _damaged("a name is not text")
        found = Global(module, name)
        self.admit(found)
        return found

    def _call(self, maker: object, arguments: object) -> None:
        if not isinstance(arguments, tuple):
            raise _damaged("a call has no arguments")
        built: object = None
        if isinstance(maker, Global | Inert):
            built = self.construct(maker, cast("tuple[object, ...]", arguments))
        if built is None:
            # Otherwise a million calls of one name would keep a million copies of it.
            name = intern(str(maker)) if isinstance(maker, Global) else "a computed object"
            built = Inert(name)
            self.inert.append(built)
        self._push(built)

    def _build(self) -> None:
        state, target = self._pop(), self._top()
        if isinstance(target, Inert):
            target.state = state


def is_pickle(data: bytes) -> bool:
    """Return whether the bytes start with a complete pickle, judging by its opcodes."""
    opcodes = (opcode.name for opcode, _, _ in pickletools.genops(data))
    try:
        with _quiet():
            return "STOP" in islice(opcodes, MOST_OPCODES)
    except ValueError:
        return False


@contextmanager
def _quiet() -> Generator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about escapes in damaged text
        yield


def _named(items: Sequence[object]) -> dict[str, object]:
    if len(items) % 2:
        raise _damaged("a key has no value")
    pairs = zip(items[::2], items[1::2], strict=True)
    return {key: value for key, value in pairs if isinstance(key, str)}


def _damaged(why: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint's pickle is damaged ({why}); copy it again.")


LONGEST_NAME = 500
"""Limit in characters; the longest honest names, of nested and wrapped layers, have about 200."""

_RUNNING_MODULES = _words(
    """
    _interpreters _pickle _posixsubprocess _xxsubinterpreters bdb cPickle cProfile code codeop
    commands imaplib imp marshal nt os pdb pickle pkgutil popen2 posix profile pty pydoc runpy
    shutil site smtplib socket ssl subprocess sys timeit trace urllib2 venv webbrowser
    zipimport
    """
)
"""Modules without their submodules: a training project may have a folder named code or profile."""

_RUNNING_PACKAGES = _words(
    """
    asyncio cffi cloudpickle ctypes dill distutils importlib joblib multiprocessing
    numpy.distutils numpy.f2py pip torch.hub torch.package torch.utils.cpp_extension urllib
    """
)
"""Packages with their submodules."""

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
"""Records that rejected modules return: a training run may store the machine it ran on."""

_GATEWAYS = _words(
    """
    __builtins__ builtins ctypes importlib marshal nt os posix pty runpy shutil socket
    subprocess sys
    """
)
"""Modules that other modules may have imported: torch.os.system is os.system."""

_LOOKUPS = _words(
    """
    __builtin__.getattr _operator.attrgetter _operator.getitem _operator.itemgetter
    builtins.getattr operator.attrgetter operator.getitem operator.itemgetter
    """
)


def check_harmless(name: Global) -> None:
    """Raise CheckpointError for names that only a malicious file mentions."""
    if len(name.module) + len(name.name) > LONGEST_NAME:
        raise CheckpointError(
            f"The checkpoint contains a name of {len(name.module) + len(name.name)} characters, "
            "longer than in any training state; it is rejected."
        )
    if str(name) not in _PLAIN_RECORDS and (_runs_something(name) or _leads_away(name)):
        raise CheckpointError(_refusal(quoted(str(name))))


def check_call(maker: str) -> None:
    """Raise CheckpointError for a call of an attribute or item that a lookup returned.

    maker: name of the function that returned the called object.
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
    """Return whether a dotted name leads through another module or a special attribute."""
    parts = name.name.split(".")
    inner = len(parts) > 1 and any(p.startswith("__") and p.endswith("__") for p in parts)
    return inner or not _GATEWAYS.isdisjoint(parts)


def _is_below(module: str, packages: frozenset[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:count]) in packages for count in range(1, len(parts) + 1))


def _refusal(what: str) -> str:
    return (
        f"The checkpoint tries to run {what}, which no training state needs; it is rejected and "
        "nothing was run. Do not open this file with torch.load."
    )
