"""What `check=true` saw of a call: its tensors, its state, and what stands in the way of each way to run it."""

from __future__ import annotations

from collections.abc import Iterator

from profiling.errors import printable
from profiling.report.format import count_of, listed, mebibytes, significant
from profiling.report.page import Section
from profiling.report.run_data import RunData
from profiling.report.table import Column, Table, columns
from profiling.results.check import CheckedCall, Obstacle, StateForm, TensorForm

#: Most names of state that a line lists.
_MOST = 6


#: A tensor or a value that a call of a network reads, returns or keeps.
_Row = tuple[str, TensorForm | StateForm, str]


def check_section(data: RunData) -> Section:
    """Return, for each network, a line on parameters and state, one on each obstacle, and a table of its tensors."""
    checked = [(record.component, record.check) for record in data.records if record.check is not None]
    lines: list[str] = []
    rows: list[_Row] = []
    for component, check in checked:
        for name, call in check.calls.items():
            title = name if name == component else f"{component}, {name}"
            lines += _lines(title, call)
            roles = (("input", call.inputs), ("output", call.outputs), ("state", call.state))
            rows += [(title, form, role) for role, forms in roles for form in forms]
        if check.seconds is not None:
            lines.append(f"{component}: checked in {significant(check.seconds, 2)} s, nothing was timed.")
    table = Table("Tensors of a call", _COLUMNS, rows, keys=3)
    return Section("check", "Check", tuple(map(printable, lines)), tables=(table,))


def _lines(name: str, call: CheckedCall) -> Iterator[str]:
    dtypes = listed([f"{count:,} {dtype}" for dtype, count in call.parameter_dtypes.items()] or ["none"])
    yield f"{name}: parameters: {dtypes}, {mebibytes(call.parameter_bytes)} MiB. {_state(call)}"
    yield from (f"{name}, {call.calls} calls in a row: {each}." for each in call.effects)
    yield from (f"{name}, parity: {_obstacle(each)}" for each in call.obstacles if each.hinders == "parity")
    obstacles = [each for each in call.obstacles if each.hinders == "cuda_graph"]
    if call.captured:
        yield f"{name}, CUDA graph: a call was captured."
    elif not obstacles:
        yield f"{name}, CUDA graph: nothing stands in its way, as far as a CPU can show: no capture can be tried here."
    yield from (f"{name}, CUDA graph: {_obstacle(each)}" for each in obstacles)
    breaks = [each for each in call.obstacles if each.hinders == "compile"]
    if call.compiled_graphs == 1 and not breaks:
        yield f"{name}, torch.compile: one call is 1 graph, without a break."
    elif call.compiled_graphs and not breaks:
        graphs = count_of(call.compiled_graphs, "graph")
        yield f"{name}, torch.compile: the call is {graphs}. What lies between runs eagerly; Dynamo names no place."
    cause = "graph break: " if call.compiled_graphs else ""  # without a graph there is nothing to break
    yield from (f"{name}, torch.compile: {cause}{_obstacle(each)}" for each in breaks)
    yield from (f"{name}: {reason}." for reason in call.unknown)


def _state(call: CheckedCall) -> str:
    if not call.state:
        return "No state."
    changed = [each.path for each in call.state if each.changed]
    size = f"{count_of(len(call.state), 'tensor')}, {mebibytes(sum(each.bytes for each in call.state))} MiB"
    if not changed:
        return f"State: {size}; a call changes none of it."
    more = f" and {len(changed) - _MOST} more" if len(changed) > _MOST else ""
    return f"State: {size}; a call changes {', '.join(changed[:_MOST])}{more}."


def _obstacle(each: Obstacle) -> str:
    """Return the place, the reason and what to change."""
    place = f"{each.file}:{each.line} ({each.code})" if each.file else (each.operator or "")
    reason = f"{place}: {each.reason}" if place else each.reason
    return f"{reason.rstrip('.')}." + (f" To do: {each.advice.rstrip('.')}." if each.advice else "")


_COLUMNS = (
    Column[_Row]("component", lambda row: row[0]),
    Column[_Row]("role", lambda row: row[2]),
    Column[_Row]("name", lambda row: row[1].path or "(itself)"),
    *columns(TensorForm, "dtype", "value"),
    Column[_Row]("shape", lambda row: None if row[1].shape is None else str(list(row[1].shape))),
    *columns(TensorForm, "device"),
    *columns(StateForm, "bytes", "changed"),
)
