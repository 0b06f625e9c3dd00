"""Pickles read as data: nothing is imported, nothing is called, whatever the file asks for.

Python's own unpickler resolves names and calls what it finds. This one has no way to do either:
a name stays a `Global`, and a call becomes what the caller's `construct` makes of the name and
its arguments, or an `Inert` record. pickletools of the standard library decodes the opcodes.
"""

import pickletools
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from sys import intern
from typing import BinaryIO, cast

from ...errors import CheckpointError

MOST_OPCODES = 1_000_000
"""More than any training state needs; a 9-block pair of generators with Adam takes 60 000."""

_VALUES = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    ]
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


@dataclass(frozen=True, slots=True)
class Global:
    """The name of something that a program would import.

    module: where it lies, with dots.
    """

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Inert:
    """What stands for an object that was not made: the name of its class or maker, its state."""

    name: str
    state: object = field(default=None, repr=False)

    @property
    def is_module(self) -> bool:
        """Whether this would have been a torch.nn.Module with its layers."""
        state = self.state
        return (
            isinstance(state, dict)
            and {"_parameters", "_modules"} <= cast("dict[str, object]", state).keys()
        )


Construct = Callable[[Global | Inert, tuple[object, ...]], object]
"""What to put in place of a call: a value, or None to leave an `Inert` there."""


@dataclass(slots=True)
class PickleReader:
    """Reads one pickle after another from a stream.

    construct: what stands for a call of a name, or of what a call made.
    fetch: what a persistent id stands for.
    admit: sees every name that the pickle mentions, and may refuse it.
    inert: everything that was set aside, in order.
    """

    construct: Construct
    fetch: Callable[[object], object]
    admit: Callable[[Global], None]
    inert: list[Inert] = field(default_factory=list[Inert])
    _stack: list[object] = field(default_factory=list[object])
    _marks: list[int] = field(default_factory=list[int])
    _memo: dict[object, object] = field(default_factory=dict[object, object])

    def read(self, stream: BinaryIO) -> object:
        """The next pickle's value, from dict, list, tuple, plain scalars and stand-ins.

        Dictionaries keep only entries whose key is a string: no others can name a tensor.
        Raises CheckpointError if the pickle is damaged, too long, or names what is refused.
        """
        self._stack, self._marks, self._memo = [], [], {}
        try:
            with _quiet():
                return self._read(stream)
        except ValueError as error:  # all that pickletools raises
            raise CheckpointError(
                f"The checkpoint's pickle is damaged ({error}); copy it again."
            ) from error

    def _read(self, stream: BinaryIO) -> object:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if count >= MOST_OPCODES:
                raise CheckpointError(
                    f"The checkpoint's pickle has more than {MOST_OPCODES} steps; "
                    "no training state needs as many."
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
                    f"The checkpoint's pickle uses {name}, which no checkpoint needs; "
                    "it is refused."
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
            raise _damaged("it refers to a value that was not stored")
        self._push(self._memo[index])

    def _extend(self, items: Sequence[object]) -> None:
        target = self._top()
        if isinstance(target, list):
            cast("list[object]", target).extend(items)
        elif not isinstance(target, Inert):
            raise _damaged("items are added to what is not a list")

    def _update(self, items: Sequence[object]) -> None:
        target = self._top()
        if isinstance(target, dict):
            cast("dict[str, object]", target).update(_named(items))
        elif not isinstance(target, Inert):
            raise _damaged("entries are added to what is not a dictionary")

    def _global(self, module: object, name: object) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise _damaged("a name is not text")
        found = Global(module, name)
        self.admit(found)
        return found

    def _call(self, maker: object, arguments: object) -> None:
        if not isinstance(arguments, tuple):
            raise _damaged("a call has no arguments")
        made: object = None
        if isinstance(maker, Global | Inert):
            made = self.construct(maker, cast("tuple[object, ...]", arguments))
        if made is None:
            # A million calls of one name would otherwise keep a million copies of it.
            name = intern(str(maker)) if isinstance(maker, Global) else "a computed object"
            made = Inert(name)
            self.inert.append(made)
        self._push(made)

    def _build(self) -> None:
        state, target = self._pop(), self._top()
        if isinstance(target, Inert):
            target.state = state


def is_pickle(data: bytes) -> bool:
    """Whether these bytes begin with a whole pickle, as far as its opcodes tell."""
    opcodes = (opcode.name for opcode, _, _ in pickletools.genops(data))
    try:
        with _quiet():
            return "STOP" in islice(opcodes, MOST_OPCODES)
    except ValueError:
        return False


@contextmanager
def _quiet() -> Generator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of escapes in damaged text
        yield


def _named(items: Sequence[object]) -> dict[str, object]:
    if len(items) % 2:
        raise _damaged("a key has no value")
    pairs = zip(items[::2], items[1::2], strict=True)
    return {key: value for key, value in pairs if isinstance(key, str)}


def _damaged(why: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint's pickle is damaged ({why}); copy it again.")
