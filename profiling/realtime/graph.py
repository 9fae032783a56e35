"""The graph of a loop, from the config group `pipeline/`: sources, stages and the edges between them.

Free of torch: the process that starts cells parses and checks it. Shapes are checked where the stages are built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from profiling.components.spec import check_target, decode
from profiling.errors import InputError, check_choice, check_number, check_whole, did_you_mean, printable
from profiling.results.loop import BUDGET_NAMES

#: Two days at 60 frames a second, whose actions and times still fit into memory.
MOST_FRAMES = 10**7
#: Names of rows and series that a loop adds to those of its stages.
DELIVER, PIPELINE = "deliver", "pipeline"

#: How an input is drawn in every tick: mean 0 and std 1, [low, high), 0 or 1, and integers in [low, high). `drawn`:
#: as the component's YAML draws it, several values in turn.
DRAWN = "drawn"
DISTRIBUTIONS = ("normal", "uniform", "bernoulli", "integers", DRAWN)
FIXED = "fixed"  # an input that keeps what the component's YAML draws
#: Names that no stage, source or key may have.
RESERVED = (DELIVER, PIPELINE, *BUDGET_NAMES, *DISTRIBUTIONS, FIXED)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_EDGE = re.compile(rf"({_NAME.pattern})((?:\.[A-Za-z0-9_]+)*)(@-1)?")


class Edge:
    """What an input gets in a tick. Its text is the edge as it is written in YAML."""


@dataclass(frozen=True)
class Read(Edge):
    """An edge from a stage's output, or from a key of a source.

    `before`: the output of the tick before; `own`: that of the stage's own call before, in the same tick.
    """

    name: str
    path: str = ""  # of a tensor in the output; empty: the output is one tensor
    before: bool = False
    own: bool = False

    def __str__(self) -> str:
        return f"{self.name}{'.' * bool(self.path)}{self.path}{'@-1' * self.before}"


@dataclass(frozen=True)
class Draw(Edge):
    """An edge that draws fresh values on the device in every tick: integers and uniform ones are in [low, high)."""

    distribution: str
    low: float = 0.0
    high: float = 1.0

    def __str__(self) -> str:
        return self.distribution


@dataclass(frozen=True)
class Fixed(Edge):
    """An edge that never changes: its value, one for each repeated call, or (empty) what the component's YAML draws."""

    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{value:g}" for value in self.values) or FIXED


@dataclass(frozen=True, kw_only=True)
class Source:
    """Values that come from the host, one every `period` ticks, repeated after the last.

    They are recorded (`file`, an .npz with arrays [n, ...] by key), made by a factory (`make`, with a `_target_` that
    returns such arrays), or drawn from the seed (`draw`, a distribution for each key). A file comes before a factory.
    """

    file: str | None = None
    make: Mapping[str, Any] | None = None
    draw: Mapping[str, Draw] | None = None
    period: int = 1


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A component in the loop, and the edge of each of its inputs.

    It runs in every `every`-th tick, `repeat` times; in the second call and later, `again` replaces edges of `inputs`,
    and may read the stage's own output of the call before. `priority` is that of its CUDA stream where stages overlap
    (0 or negative, lower runs first).
    """

    component: str
    inputs: Mapping[str, Edge] = field(default_factory=dict)
    again: Mapping[str, Edge] = field(default_factory=dict)
    every: int = 1
    repeat: int = 1
    priority: int = 0

    def edges(self) -> tuple[tuple[str, str, Edge], ...]:
        """Return (inputs or again, input, edge) of every edge."""
        parts = {"inputs": self.inputs, "again": self.again}
        return tuple((part, key, edge) for part, edges in parts.items() for key, edge in edges.items())

    def reads(self) -> tuple[Read, ...]:
        """Return the edges from sources and stages, without those from own calls in the same tick."""
        return tuple(edge for _, _, edge in self.edges() if isinstance(edge, Read) and not edge.own)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The graph of a tick. A tick delivers `frames_per_tick` frames, which are played at `frame_rate` frames/s.

    `warmup_frames` ticks come before the timed ones (None: as many as the loop's option says).
    `stages` are in an order in which each one comes after those that it reads in the same tick. `rates` are frame rates
    that every loop is compared with. `work` are settings that change what a tick computes: they are recorded, and runs
    that differ in them are not compared. `miss` says what a late tick is to the user, "a gap in the sound" for example.
    """

    name: str = "realtime"
    sources: Mapping[str, Source]
    stages: Mapping[str, Stage]
    deliver: tuple[Read, ...]
    frames_per_tick: int = 1
    frame_rate: int | float = 60.0
    rates: tuple[int | float, ...] = (24.0, 30.0, 60.0, 120.0)
    work: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    miss: str | None = None
    warmup_frames: int | None = None

    def sampled(self, tick: int) -> dict[str, int]:
        """Return, by source, the tick in which the newest value was sampled that shows in what `tick` delivers.

        Where several stages are delivered, it is that of the stage whose value is oldest. A source that no delivered
        stage depends on is left out.
        """
        oldest: dict[str, int] = {}
        for edge in self.deliver:
            for source, sample in self._newest(edge.name, tick, ()).items():
                oldest[source] = min(sample, oldest.get(source, sample))
        return oldest

    def _newest(self, name: str, tick: int, path: tuple[str, ...]) -> dict[str, int]:
        """Return the newest sample of each source in the output of a stage; `path` are the stages that read it."""
        newest: dict[str, int] = {}
        tick -= tick % self.stages[name].every
        path = (*path, name)
        for edge in self.stages[name].reads():
            samples: Mapping[str, int] = {}
            if edge.name in self.sources:
                samples = {edge.name: tick - tick % self.sources[edge.name].period}
            elif edge.name not in path:  # a way around a cycle leads to older values only
                samples = self._newest(edge.name, tick - edge.before, path)
            for source, sample in samples.items():
                newest[source] = max(sample, newest.get(source, sample))
        return newest


def parse_graph(node: Any, components: Iterable[str]) -> Graph:
    """Read the node `pipeline` of a config, as plain data; `components` are the names of those that were chosen.

    Raises:
        InputError: an unknown key, stage, source or component, a wrong value, or a cycle without a delay.

    """
    where = "pipeline"
    given = _given(where, node, "stages and deliver")
    sources = {name: _source(name, each) for name, each in _named(f"{where}.sources", given.get("sources")).items()}
    names = _named(f"{where}.stages", given.get("stages"))
    if not names:
        raise InputError("pipeline.stages is empty. Name at least one: stages: {decode: {component: NAME, inputs: …}}")
    if both := sorted(set(names) & set(sources)):
        raise InputError(f"pipeline.sources.{both[0]}: a stage has the same name. Rename one of the two.")
    stages = {name: _stage(name, each, list(components)) for name, each in names.items()}
    for name, stage in stages.items():
        for part, key, edge in stage.edges():
            if isinstance(edge, Read):
                _check_read(f"{where}.stages.{name}.{part}.{key}={edge}", edge, sources, stages)
    ordered = {name: stages[name] for name in _ordered(stages)}
    deliver = _deliver(given.get("deliver"), sources, stages)
    graph = decode(Graph, {**given, "sources": sources, "stages": ordered, "deliver": deliver}, where)
    _check_name(f"{where}.name", graph.name)
    check_whole(f"{where}.frames_per_tick", graph.frames_per_tick)
    if graph.warmup_frames is not None:
        check_whole(f"{where}.warmup_frames", graph.warmup_frames, most=MOST_FRAMES)
    for key, rate in (("frame_rate", graph.frame_rate), *(("rates", rate) for rate in graph.rates)):
        check_number(f"{where}.{key}", rate, above=0)
    return graph


def _source(name: str, node: Any) -> Source:
    where = f"pipeline.sources.{name}"
    given = _given(where, node, "file, make or draw")
    if "draw" in given:
        drawn = _named(f"{where}.draw", given["draw"])
        given["draw"] = {key: _edge(f"{where}.draw.{key}", each) for key, each in drawn.items()}
        for key, edge in given["draw"].items():
            if not isinstance(edge, Draw):
                raise InputError(f"{where}.draw.{key}={edge} is none of {', '.join(DISTRIBUTIONS)}.")
    source = decode(Source, given, where)
    check_whole(f"{where}.period", source.period)
    if source.file is None and source.make is None and source.draw is None:
        raise InputError(f"{where} has no values. Give file: FILE.npz, make: {{_target_: …}} or draw: {{KEY: normal}}.")
    if source.make is not None:
        check_target(source.make, f"{where}.make")
    return source


def _stage(name: str, node: Any, components: Sequence[str]) -> Stage:
    where = f"pipeline.stages.{name}"
    given = _given(where, node, "component and inputs")
    edges: dict[str, dict[str, Edge]] = {}
    for part in ("inputs", "again"):
        values = _given(f"{where}.{part}", given.get(part), f"an edge for each input, {part}: {{x: normal}}")
        edges[part] = {str(key): _edge(f"{where}.{part}.{key}", each) for key, each in values.items()}
    for key, edge in edges["again"].items():
        if isinstance(edge, Read) and edge.name == name and not edge.before:
            edges["again"][key] = replace(edge, own=True)
    stage = decode(Stage, {**given, **edges}, where)
    if stage.component not in components:
        raise InputError(
            f"{where}.component={stage.component} is none of the components {', '.join(components)}."
            f"{did_you_mean(stage.component, components)} Name it in component=[...] too."
        )
    check_whole(f"{where}.every", stage.every)
    check_whole(f"{where}.repeat", stage.repeat)
    check_whole(f"{where}.priority", stage.priority, -5, 0)
    for part, key, edge in stage.edges():
        if key not in stage.inputs:
            raise InputError(f"{where}.again.{key}: inputs has no {key}.{did_you_mean(key, stage.inputs)}")
        number = len(edge.values) if isinstance(edge, Fixed) else 0
        if number > 1 and ((number, part) != (stage.repeat, "inputs") or key in stage.again):
            raise InputError(f"{where}.{part}.{key}={edge}: a list needs repeat={number}, and no again.")
    if stage.again and stage.repeat == 1:
        raise InputError(f"{where}.again is for the second call and later: add repeat, or leave it out.")
    return stage


def _edge(where: str, value: Any) -> Edge:
    if isinstance(value, Mapping):
        draw = decode(Draw, value, where)
        check_choice(f"{where}.distribution", draw.distribution, DISTRIBUTIONS)
        if draw.high <= draw.low:
            raise InputError(f"{where}: high={draw.high:g} must be a number above low={draw.low:g}.")
        return draw
    if isinstance(value, bool | int | float):
        return Fixed((float(value),))
    if isinstance(value, list | tuple):
        if not value or not all(isinstance(each, bool | int | float) for each in value):
            raise InputError(f"{where}={value}: a list holds a number for each call, with repeat.")
        return Fixed(tuple(map(float, value)))
    if value == FIXED:
        return Fixed()
    if value == "integers":
        raise InputError(f"{where}=integers: give the range, {{distribution: integers, low: 0, high: 1000}}.")
    if value in DISTRIBUTIONS:
        return Draw(value)
    match = _EDGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InputError(
            f"{where}={value} is no edge. Write STAGE, STAGE.0, STAGE.key, STAGE@-1 (the tick before), SOURCE.key, "
            f"a number, {FIXED}, or one of {', '.join(DISTRIBUTIONS)}."
        )
    return Read(match[1], match[2].removeprefix("."), match[3] is not None)


def _check_read(where: str, edge: Read, sources: Mapping[str, Source], stages: Mapping[str, Stage]) -> None:
    if edge.name in sources:
        draw = sources[edge.name].draw
        if not edge.path or edge.before:
            raise InputError(f"{where}: read a key of the source as {edge.name}.KEY, without a delay.")
        if draw is not None and edge.path not in draw:
            raise InputError(f"{where}: the source has no {edge.path}.{did_you_mean(edge.path, draw)}")
    elif edge.name not in stages:
        names = [*sources, *stages, *DISTRIBUTIONS, FIXED]
        raise InputError(f"{where}: there is no stage or source {edge.name}.{did_you_mean(edge.name, names)}")


def _deliver(node: Any, sources: Mapping[str, Source], stages: Mapping[str, Stage]) -> tuple[Read, ...]:
    where = "pipeline.deliver"
    if not node:
        raise InputError(f"{where} is empty. Name the stages whose outputs are a frame, deliver: [STAGE] for example.")
    reads: dict[Read, None] = {}
    for each in node if isinstance(node, list | tuple) else [node]:
        edge = _edge(where, each)
        if not isinstance(edge, Read) or edge.before or edge.name in sources:
            raise InputError(f"{where}={each}: name stages, as STAGE, or an output of one, as STAGE.0.")
        _check_read(where, edge, sources, stages)
        reads[edge] = None
    return tuple(reads)


def _ordered(stages: Mapping[str, Stage]) -> list[str]:
    """Return the stages in the order of the YAML, but each after those that it reads in the same tick."""
    order: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in order:
            return
        if name in path:
            cycle = (*path[path.index(name) :], name)
            raise InputError(
                f"pipeline.stages: {' reads '.join(cycle)} in the same tick, which is a cycle. Let one of them read "
                f"the output of the tick before, {cycle[1]}@-1 for example."
            )
        for edge in stages[name].reads():
            if edge.name in stages and not edge.before:
                visit(edge.name, (*path, name))
        order.append(name)

    for name in stages:
        visit(name, ())
    return order


def _given(where: str, node: Any, example: str) -> dict[Any, Any]:
    """Return the entries of a mapping whose value is not null: `name: null` in YAML leaves out what it names."""
    if not isinstance(node, Mapping | None):
        raise InputError(f"{where}={printable(node, 100)}: must be a mapping with {example}.")
    return {key: value for key, value in (node or {}).items() if value is not None}


def _named(where: str, node: Any) -> Mapping[str, Any]:
    named = _given(where, node, "a name for each")
    for name in named:
        _check_name(f"{where}: the name", name)
        if name in RESERVED:
            raise InputError(f"{where}.{name}: this name is taken. Choose another one.")
    return named


def _check_name(where: str, value: Any) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InputError(f"{where} {value!r} must be letters, digits and underscores, and begin with a letter.")
