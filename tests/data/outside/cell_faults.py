"""Components, variants and metrics that raise, return or change what they should not, one fault each."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy
import torch
from torch import nn

from profiling.metrics.metric import Measured, Metric
from profiling.variants.variant import Step, Variant


class MuteError(Exception):
    def __str__(self):
        raise SystemExit(0)


RAISED = {
    "sys_exit": lambda: SystemExit(0),
    "interrupt": KeyboardInterrupt,
    "mute": MuteError,
    "escapes": lambda: RuntimeError("\x1b[2J\x1b]0;title\x07\r\ncleared\udc80"),
    "plain": lambda: RuntimeError("planted"),
}


@dataclass(frozen=True, kw_only=True)
class Raises(Variant):
    """Raises one of `RAISED` in one of its parts."""

    fault: str
    where: str = "call"

    def unavailable(self, device):
        self._reached("unavailable")

    def __call__(self, component, folder):
        self._reached("call")

        def run():
            self._reached("step")
            return component.call()

        return Step(run, close=lambda: self._reached("close"), explain=lambda: self._reached("explain") or {})

    def _reached(self, where):
        if where in self.where.split("+"):
            raise RAISED[self.fault]()


ARMED = []


@dataclass(frozen=True, kw_only=True)
class Armed(Variant):
    """Raises in each call once `ARMED` holds something."""

    def __call__(self, component, folder):
        def run():
            if ARMED:
                raise RuntimeError("planted in a window")
            return component.call()

        return Step(run)


@dataclass(frozen=True, kw_only=True)
class Arms(Variant):
    """Arms the other variants after some calls."""

    calls: int

    def __call__(self, component, folder):
        left = iter(range(self.calls))

        def run():
            if next(left, None) is None:
                ARMED.append(True)
            return component.call()

        return Step(run)


EXPLAINED = {
    "unknown": {"no_such_section": 1},
    "none": None,
}


@dataclass(frozen=True, kw_only=True)
class Explains(Variant):
    """Returns one of `EXPLAINED` as its explanation."""

    what: str

    def __call__(self, component, folder):
        return Step(component.call, explain=lambda: EXPLAINED[self.what])


MEASURED = {
    "none": lambda: None,
    "list": lambda: Measured([1, 2]),
    "status": lambda: Measured({}, ("broken", "planted")),
    "reason": lambda: Measured({}, ("failed", None)),
    "not a number": lambda: Measured({"mine": float("nan")}),
    "surrogate": lambda: Measured({"mine": "\udc80"}),
}


@dataclass(frozen=True, kw_only=True)
class Returns(Metric):
    """Returns one of `MEASURED`, or raises when a phase is reached."""

    what: str

    def on_phase(self, phase, device):
        if self.what == "phase":
            raise RuntimeError(f"planted in {phase}")

    def measure(self, subject):
        return MEASURED[self.what]()


def _close_output():
    sys.stdout.close()
    with suppress(OSError):
        os.close(1)


def _patched_save(*args, **kwargs):
    raise RuntimeError("torch.save is patched")


CHANGES = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "grad": lambda: torch.set_grad_enabled(False),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "threads": lambda: torch.set_num_threads(3),
    "folder": lambda: os.chdir("/"),
    "variables": lambda: os.environ.update(HOME="/nowhere", CELL_FAULT="1"),
    "signals": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 100),
    "output": _close_output,
    "save": lambda: setattr(torch, "save", _patched_save),
    "clock": lambda: setattr(time, "perf_counter_ns", lambda: -time.monotonic_ns()),
    "seeds": lambda: (random.seed(), numpy.random.seed(), torch.seed()),
}


class Changes(nn.Module):
    """Changes the state of the whole process when it is built, after its first layer, and in its first call."""

    def __init__(self, what: str, width: None = None) -> None:
        super().__init__()
        self.what = what.split("+")
        self.first = nn.Linear(8, 8)
        self._change()
        if what == "device":  # the rest of the module as its author wants it
            torch.set_default_device("cpu")
        self.last = nn.Linear(8, 8, device=self.first.weight.device)
        if what == "device":
            self._change()

    def _change(self) -> None:
        for each in self.what:
            CHANGES[each]()

    def forward(self, x: torch.Tensor, gain: torch.Tensor | None = None) -> torch.Tensor:
        self._change()
        self.what = []
        return self.last(torch.tanh(self.first(x)))


@dataclass(frozen=True, kw_only=True)
class HoldsTheLock(Variant):
    """Starts a process, and then sleeps without letting another Python thread run."""

    def __call__(self, component, folder):
        child = subprocess.Popen(["sleep", "600"])
        pids = folder.parent.parent / "cells" / "pids"
        pids.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
        pids.with_suffix(".new").rename(pids)
        ctypes.PyDLL(None).sleep(600)
