"""What a way of executing is: a frozen set of options that turns a component into a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from profiling.components.component import Component


def _nothing() -> None:
    """Undo nothing."""


def _no_sections() -> Mapping[str, Any]:
    """Tell nothing."""
    return {}


@dataclass(frozen=True)
class EagerStep:
    """What a step runs, with every kernel launched by the host: the step itself, or what it captured.

    `module` is the one whose submodules run one after the other in it, None where a compiler fused them. A trace of
    this says of a replay's kernels what they are.
    """

    call: Callable[[], Any]
    module: nn.Module | None = None


@dataclass(frozen=True)
class Step:
    """A prepared step: `run` takes no arguments, reads the component's inputs and returns the output.

    `explain` is asked once, after every metric, for record sections that only the variant knows (its graphs, its
    passes); it may run the step and measure. `close` puts back the global flags that the variant set. `others` are
    steps of the component's further inputs (`also`), in their order, prepared beside this one. `uncaptured` is for who
    looks inside: None where the variant has nothing that launches kernel by kernel.
    """

    run: Callable[[], Any]
    close: Callable[[], None] = _nothing
    explain: Callable[[], Mapping[str, Any]] = _no_sections
    extra_steps: tuple[Callable[[], Any], ...] = ()
    eager_step: EagerStep | None = None


@dataclass(frozen=True, kw_only=True)
class Variant(ABC):
    """A way to execute a component; its fields are the options of its YAML.

    `tolerance` replaces the default parity tolerance (relative L2 error, no unit) where the variant is inexact by
    design, a quantised one for example.
    """

    tolerance: float | None = None

    def unavailable(self, device: torch.device) -> str | None:
        """Return why this variant cannot run on `device` at all (its cells are then skipped), or None."""
        return None

    @abstractmethod
    def __call__(self, component: Component, folder: Path) -> Step:
        """Prepare `component`: all compiling, warming up and capturing happens here, before any clock starts.

        `folder` is the cell's own place in the run folder for files worth keeping; it is made by whoever fills it.
        """
