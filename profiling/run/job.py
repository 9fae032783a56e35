"""A run as the user asked for it, and its jobs: one per cell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError, check_whole
from profiling.results.record import Record


@dataclass(frozen=True)
class Job:
    """One cell: a component, a variant, the metrics, and where the cell's own files go (a folder of the run).

    `procedure` is the procedure of this target's cells: the `_target_` of a `profiling.run.cell.Cell` and its options.
    """

    target: str
    component: ComponentSpec
    variant: str
    variant_options: Mapping[str, Any]  # with the _target_
    metrics: Mapping[str, Mapping[str, Any]]  # name → options with the _target_
    settings: Settings
    run: str
    procedure: Mapping[str, Any]

    @property
    def name(self) -> str:
        """`<component>.<variant>`, the stem of every file of the cell."""
        return f"{self.component.name}.{self.variant}"

    def to_json(self) -> str:
        """Return the job as one JSON document."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        """Return the job of `to_json`'s text."""
        content = json.loads(text)
        content["component"] = ComponentSpec(**content["component"])
        content["settings"] = Settings(**content["settings"])
        return Job(**content)


class CellFiles:
    """What a target does with files of its own in the run folder; here nothing.

    A target whose cells write further files has a subclass. It is used in the parent process: its module must not
    import torch.
    """

    def clear(self, folder: Path, cell: str, *, first_round: bool) -> None:
        """Remove the files of an earlier attempt at a cell; before the first round, those kept of its rounds too."""

    def recover(self, folder: Path, job: Job) -> Mapping[str, Any]:
        """Complete the files of a cell, also of one whose process died; return the sections of its record in them.

        Raises:
            OSError: a file cannot be read or written.
            ValueError: a file is damaged.

        """
        return {}

    def keep_round(self, folder: Path, cell: str, round_: int) -> None:
        """Copy the files of a round, which the next round overwrites."""

    def environment(self, records: Iterable[Record]) -> Mapping[str, Any]:
        """Return the fields of the run's environment that its records determine."""
        return {}


#: The procedure of a cell unless its target names another one: a forward pass.
FORWARD: Mapping[str, Any] = {"_target_": "profiling.run.forward.ForwardCell"}


@dataclass(frozen=True)
class RunConfig:
    """A run as the user asked for it: components × variants, in that order, and how to run the cells."""

    components: tuple[ComponentSpec, ...]
    variants: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, Mapping[str, Any]]
    settings: Settings
    isolation: Literal["process", "none"]
    cell_timeout: float
    resume: str | None
    source: Mapping[str, Any]  # the composed config, for config.yaml
    procedure: Mapping[str, Any] = field(default_factory=lambda: FORWARD)
    files: CellFiles = field(default_factory=CellFiles)
    rounds: int = 1  # how often all cells run, in turns (ABAB)

    def __post_init__(self) -> None:
        """Check the values that concern the run as a whole."""
        for group, members in (("component", self.components), ("variant", self.variants)):
            if not members:
                raise InputError(f"{group}=[] leaves nothing to run. Name at least one {group}.")
        if self.isolation not in ("process", "none"):
            raise InputError(f"isolation={self.isolation} is none of process, none.")
        if not 0 < self.cell_timeout < float("inf"):
            raise InputError(f"cell_timeout={self.cell_timeout}: seconds, more than 0.")
        check_whole("rounds", self.rounds)

    def jobs(self, target: str, settings: Settings, run: str) -> tuple[Job, ...]:
        """Return one job per cell, under the resolved `settings`."""
        return tuple(
            Job(
                target=target,
                component=component.at(settings.scale),
                variant=name,
                variant_options=options,
                metrics=self.metrics,
                settings=settings,
                run=run,
                procedure=self.procedure,
            )
            for component in self.components
            for name, options in self.variants.items()
        )
