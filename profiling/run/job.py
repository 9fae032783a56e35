"""The config of a run, and its jobs, one per cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError, check_choice, check_number, check_whole, printable
from profiling.results.record import BASELINE
from profiling.trace import nsight_compute
from profiling.variants.steps import Step


@dataclass(frozen=True)
class Job:
    """One cell: a component, a variant, the metrics, and the folder of the run for the cell's files.

    `procedure` is the `_target_` of the target's subclass of `profiling.run.cell.Cell`, and its options.
    """

    target: str
    component: ComponentSpec
    variant: str
    variant_options: Mapping[str, Any]  # with the _target_
    metrics: Mapping[str, Mapping[str, Any]]  # name → options with the _target_
    settings: Settings
    run: str
    procedure: Mapping[str, Any]
    parts: tuple[Job, ...] = ()  # that compile, one by one, the code that this cell compiles: the stages of a loop
    loop: str | None = None  # the name of a loop of several components, of which `component` is the first

    @property
    def row(self) -> str:
        """What records name the cell after: its component, or the loop in which several are played."""
        return self.component.name if self.loop is None else self.loop

    @property
    def networks(self) -> tuple[ComponentSpec, ...]:
        """The components whose networks the cell builds: its own, or those of the stages of a loop."""
        return tuple(part.component for part in self.parts) or (self.component,)

    @property
    def takes_windows(self) -> bool:
        """Whether it is timed in windows, in turns with others."""
        timed = any(node["_target_"] == LATENCY for node in self.metrics.values())
        return self.procedure["_target_"] == FORWARD["_target_"] and timed and not self.settings.check

    @property
    def waits(self) -> bool:
        """Whether it waits, prepared, until it may be measured, so that others can be prepared beside it: a loop."""
        return self.loop is not None and not self.settings.check

    @property
    def name(self) -> str:
        """`<component>.<variant>`, the stem of every file of the cell."""
        return f"{self.row}.{self.variant}"

    @property
    def cell(self) -> tuple[str, str]:
        """(component, variant): the key of the cell's record."""
        return self.row, self.variant

    @property
    def steps(self) -> int:
        """How many steps its recipe has; 0 for a variant that is none."""
        options = self.variant_options if self.variant_options.get("_target_") == RECIPE else {}
        return len(options.get("transforms") or ()) + sum(bool(options.get(each)) for each in ("compiler", "capture"))

    @property
    def compiles(self) -> bool:
        """Whether its recipe has a compiler."""
        return bool(self.variant_options.get("compiler"))

    @property
    def imports(self) -> tuple[str, ...]:
        """What the cell needs beside what every cell does: modules of its compiler, and `module:function` to call.

        A compiler of the user's own is not among them: it is imported in the process of the cell.
        """
        compiler = self.variant_options.get("compiler")
        target = compiler.get("_target_") if isinstance(compiler, Mapping) else None
        module = str(target).rpartition(".")[0]
        if not module.startswith("profiling."):
            return ()
        return (_COMPILER, *([_FOR_A_CPU] if self.settings.device.startswith("cpu") else []), module)


#: The procedure of a cell, a forward pass, unless its target has another one.
FORWARD: Mapping[str, Any] = {"_target_": "profiling.run.forward.ForwardCell"}
#: The metric that takes turns.
LATENCY = "profiling.metrics.latency.Latency"

#: Torch's compiler, whose import takes seconds, and what it finds out for a CPU, in each process anew.
_COMPILER = "torch._inductor.compile_fx"
_FOR_A_CPU = "profiling.variants.inductor:find_vector_instructions"
#: The class of a variant without a `_target_`.
RECIPE = "profiling.variants.recipe.Recipe"

#: Longest name, and longest `<component>.<variant>`: a file has up to 50 more characters, and may have 255.
LONGEST_NAME, LONGEST_CELL = 150, 200
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@=+-]*")


def check_names(group: str, names: Iterable[str], longest: int = LONGEST_NAME) -> None:
    """Check names of components, variants or metrics, which become names of files and keys of records.

    Raises:
        InputError: a name is too long, or holds a character that is not safe in a file's name.

    """
    for name in names:
        if not isinstance(name, str) or len(name) > longest or not _NAME.fullmatch(name):
            raise InputError(
                f"{group} {printable(repr(name), longest)} cannot be the name of a file. Rename it: letters a-z, "
                f"digits and _ first, then also - . @ = +, at most {longest} characters."
            )


def as_recipe(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the node of a variant with a `_target_`, by default that of a recipe."""
    return {"_target_": RECIPE, **node}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run that concern all cells. `RunConfig` checks the values."""

    isolation: Any  # "process": one for each cell; "none": all in this one
    cell_timeout: float  # in seconds, in which a cell is active
    resume: str | None
    rounds: Any = 1  # number of times that each cell runs that is not timed in turns with others
    seconds: float | None = None  # for timing the variants of a component in turns; None: by the limits of the metric
    prepare_timeout: float | None = None  # in seconds, for preparing a cell's variant; None: cell_timeout alone
    details: bool = False  # whether the console prints all tables
    resume_changed: bool = False  # whether a resumed run may go on with other code than it began with


@dataclass(frozen=True)
class RunConfig(RunOptions):
    """The config of a run: its components × variants, in that order, and options that concern all cells."""

    components: tuple[ComponentSpec, ...]
    variants: Mapping[str, Mapping[str, Any]]  # without a `_target_`: a recipe
    metrics: Mapping[str, Mapping[str, Any]]
    settings: Settings
    source: Mapping[str, Any]  # the composed config, for config.yaml
    steps: Mapping[str, Step] = field(default_factory=dict)  # of which recipes may be made
    procedure: Mapping[str, Any] = field(default_factory=lambda: FORWARD)
    files: Any = None  # the files that cells write beside records: None, or `realtime.recovery.FrameFiles`
    # Returns the components, and the options of their variants, that a variant of these options prepares one by one.
    parts: Callable[[Mapping[str, Any]], Sequence[tuple[ComponentSpec, Mapping[str, Any]]]] | None = None
    loop: str | None = None  # the name of the loop in which all components are played; None: a cell for each

    def __post_init__(self) -> None:
        for group, members in (("component", self.components), ("variant", self.variants)):
            if not members:
                raise InputError(f"{group}=[] leaves nothing to run. Name at least one {group}.")
        rows = [spec.name for spec in self.components] if self.loop is None else [self.loop]
        check_names("component", rows)
        check_names("variant", self.variants)
        check_names("metric", self.metrics)
        object.__setattr__(self, "variants", {name: as_recipe(node) for name, node in self.variants.items()})
        cells: dict[str, str] = {}
        for cell in (f"{row}.{variant}" for row in rows for variant in self.variants):
            check_names("cell", (cell,), LONGEST_CELL)
            other = cells.setdefault(cell.lower(), cell)
            if other is not cell:
                raise InputError(
                    f"the cells {other} and {cell} would share their files. Rename a component or a variant: names "
                    "must differ by more than upper and lower case."
                )
        check_choice("isolation", self.isolation, ("process", "none"))
        if self.settings.starts and self.isolation == "none":
            raise InputError("starts=true needs a process for each cell. Leave out isolation=none.")
        if self.settings.counters and not self.settings.check:
            self._check_counters()
        check_number("cell_timeout", self.cell_timeout, above=0)
        if self.prepare_timeout is not None:
            check_number("prepare_timeout", self.prepare_timeout, above=0)
        check_whole("rounds", self.rounds, most=10_000)
        if self.seconds is not None:
            check_number("seconds", self.seconds, above=0)

    def _check_counters(self) -> None:
        if self.settings.device == "cpu":
            raise InputError("counters=true: hardware counters are those of a GPU. Leave it out on device=cpu.")
        if self.isolation == "none":
            raise InputError("counters=true needs a process for each cell. Leave out isolation=none.")
        if nsight_compute.available() is None:
            raise InputError(
                "counters=true: ncu (Nsight Compute) is not on the PATH. Leave it out, or install Nsight Compute and "
                "add its folder, for example: PATH=$PATH:/usr/local/cuda/bin"
            )

    def for_check(self) -> RunConfig:
        """Return the config of `check=true`: one cell for each component, which times nothing and has no files."""
        return replace(
            self,
            variants={"check": {}},  # the name in its record
            metrics={},
            settings=replace(
                self.settings, ceilings="off", trace=False, starts=False, counters=False, memory_snapshot=False
            ),
            files=None,
            rounds=1,
        )

    def jobs(self, target: str, settings: Settings, run: str) -> tuple[Job, ...]:
        """Return one job per cell, under the resolved `settings`, the baseline first: others are compared with it."""

        def job(component: ComponentSpec, name: str, options: Mapping[str, Any], procedure: Mapping[str, Any]) -> Job:
            return Job(
                *(target, component.at(settings.scale), name, options, self.metrics, settings, run, procedure),
                loop=self.loop,
            )

        def parts(name: str, options: Mapping[str, Any]) -> tuple[Job, ...]:
            found = self.parts(options) if self.parts is not None else ()
            return tuple(replace(job(spec, name, as_recipe(each), FORWARD), loop=None) for spec, each in found)

        return tuple(
            replace(job(component, name, options, self.procedure), parts=parts(name, options))
            for component in (self.components if self.loop is None else self.components[:1])
            for name, options in sorted(self.variants.items(), key=lambda item: item[0] != BASELINE)
        )
