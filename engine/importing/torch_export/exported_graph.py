"""The program of a torch.export archive as a graph of ONNX's operators."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...errors import CheckpointError, naming, quoted
from ...network.layers import Triple, triple
from ..checkpoint_file import file_bytes
from ..operators.operator_graph import (
    STATED_OPSET,
    Condition,
    Operator,
    OperatorGraph,
    checked_dims,
    multiplies_halves,
)
from .archive import ELEMENTS, ProgramNode, SymbolicExpression, TorchProgram, read_program
from .aten import CHECKS, REASONS, RULES, VIEWS
from .calls import Call, OperatorWriter, kind_of
from .guards import guard_conditions, interval_conditions

_HALVES = ("float16", "bfloat16")


def read_exported(path: Path) -> OperatorGraph:
    """Read and check an archive; raises CheckpointError, which names the fault."""
    data = file_bytes(path)
    with naming(path):
        return _graph(path, data)


def _graph(path: Path, data: bytes) -> OperatorGraph:
    program = read_program(data)
    calls, output = _calls(program)
    tensors = program.tensors({name for call in calls for name in call.names_read})
    writer = OperatorWriter(program.metas, {**tensors})
    for call in calls:
        _state(writer, call)
    _check_order(writer.operators, {program.input, *writer.tensors}, output)
    halves = frozenset(
        name for name, meta in program.metas.items() if ELEMENTS.get(meta.dtype) in _HALVES
    )
    dims, exported = _dims(program), _exported_extents(program)
    return OperatorGraph(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        kind="torch.export",
        layout="layers of a torch.export program",
        opset=STATED_OPSET,
        producer=program.producer,
        input=program.input,
        output=output,
        dims=dims,
        operators=tuple(writer.operators),
        tensors=writer.tensors,
        kinds=tuple(call.kind for call in calls),
        is_half=program.input in halves or multiplies_halves(writer.operators, halves),
        halves=halves,
        conditions=_conditions(program, exported),
        exported=exported,
    )


def _dims(program: TorchProgram) -> tuple[int | None, ...]:
    meta = program.metas.get(program.input)
    if meta is None or "float" not in ELEMENTS.get(meta.dtype, ""):
        raise CheckpointError("The network's input is not a tensor of floating-point numbers.")
    return checked_dims(size.as_int for size in meta.sizes)


def _conditions(program: TorchProgram, exported: Triple | None) -> tuple[Condition, ...]:
    """Return the conditions on the extents of a patch that the program states."""
    names = [_symbol(one.expr_str) for one in _open_extents(program)]
    if len(names) != 3:
        return ()  # a fixed extent, for which the converter fixes them all
    if program.guards is not None:
        return guard_conditions(program.guards, exported)
    largest = {_symbol(name): one.max_val for name, one in program.intervals.items()}
    return tuple(interval_conditions(names, largest))


def _exported_extents(program: TorchProgram) -> Triple | None:
    """Return the extents of the exported patch, if the program states them and takes others."""
    hints = [one.hint.as_int for one in _open_extents(program) if one.hint]
    known = [hint for hint in hints if hint is not None]
    return triple(known) if len(known) == 3 else None


def _open_extents(program: TorchProgram) -> list[SymbolicExpression]:
    sizes = program.metas[program.input].sizes[2:]
    return [size.as_expr for size in sizes if size.as_expr is not None]


_SYMBOL = re.compile(r"Symbol\('(\w+)'[^()]*\)")


def _symbol(expression: str) -> str:
    """Return an expression, or the name of the symbol if it is nothing else."""
    found = _SYMBOL.fullmatch(expression)
    return found[1] if found else expression


def _state(writer: OperatorWriter, call: Call) -> None:
    """State a call in ONNX's operators."""
    kind = call.kind.removesuffix("_")
    rule = RULES.get(kind)
    if rule is None:
        raise call.refusal(REASONS.get(kind, "is not supported"))
    try:
        rule(writer, call)
    except (ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise call.refusal("has arguments that do not fit it") from error
    call.check_read()


def _check_order(operators: Sequence[Operator], known: set[str], output: str) -> None:
    """Raise CheckpointError unless each value is written once, before it is read."""
    known = known | {""}
    for operator in operators:
        if missing := [name for name in operator.inputs if name not in known]:
            raise operator.refusal(f"reads {quoted(missing[0])}, which nothing before it makes")
        outputs = [name for name in operator.outputs if name]
        if twice := [name for name in outputs if name in known]:
            raise operator.refusal(f"makes {quoted(twice[0])}, which already exists")
        known.update(outputs)
    if output not in known:
        raise CheckpointError("No operator makes the network's output; the file is damaged.")


def _calls(program: TorchProgram) -> tuple[list[Call], str]:
    """Return the calls that the output depends on, and the name of the output.

    What is read after an operator that works in place is named after that operator's result.
    """
    nodes = [node for node in program.nodes if kind_of(node) not in CHECKS]
    memory = _Memory(nodes, program.output)
    calls = [Call(node, memory.renamed) for node in memory.walk()]
    output = memory.renamed(program.output)
    needed = {output}
    kept: list[Call] = []
    for call in reversed(calls):
        if needed.intersection(call.outputs):
            needed.update(call.names_read)
            kept.append(call)
    return kept[::-1], output


class _Memory:
    """Values that share memory, so that an operator in place changes what is read later.

    output: name of the value that is read last.
    """

    def __init__(self, nodes: Sequence[ProgramNode], output: str) -> None:
        self._nodes = nodes
        self._newer: dict[str, str] = {}
        self._sharing: dict[str, set[str]] = {}
        self._last_reads = {
            name: at for at, node in enumerate(nodes) for name in Call(node).names_read
        }
        self._last_reads[output] = len(nodes)

    def renamed(self, name: str) -> str:
        """Return the name under which a value goes after all operators in place so far."""
        newest = name
        while newest in self._newer:
            newest = self._newer[newest]
        if newest != name:
            self._newer[name] = newest
        return newest

    def walk(self) -> Iterator[ProgramNode]:
        """Yield the nodes in order, each before it changes names."""
        for at, node in enumerate(self._nodes):
            yield node
            call = Call(node, self.renamed)
            source = next(call.names_read, None)
            is_in_place = call.kind.startswith("aten.") and call.kind.endswith("_")
            if source is not None and (is_in_place or call.kind in VIEWS):
                sharing = self._sharing.setdefault(source, {source})
                sharing.update(call.outputs)
                self._sharing |= dict.fromkeys(call.outputs, sharing)
                if is_in_place:
                    self._replace(call, source, at)

    def _replace(self, call: Call, source: str, at: int) -> None:
        """Redirect later readers of a value to the result of a call."""
        result = call.outputs[0] if len(call.outputs) == 1 else ""
        if not result or self.renamed(result) == source:
            raise call.refusal("works in place without a result of its own")
        sharing, last = self._sharing[source], self._last_reads
        if any(last.get(name, -1) > at for name in sharing - {source, result}):
            raise call.refusal(
                "changes in place a tensor that is read later as a view, which is not supported"
            )
        sharing.clear()
        sharing.add(result)
        last[result] = max(last.get(result, -1), last.get(source, -1))
        self._newer[source] = result
