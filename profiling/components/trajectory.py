"""A trajectory: calls in a row from S0, a fresh input each, and what they return and change.

Three sides play the same calls from the same state: the fp32 reference, eager in the run's dtype, and the step. Each
advances its own state.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy
import torch

from profiling.components.component import CHECK_SEED, Component
from profiling.components.effects import Effects, is_below
from profiling.components.outputs import OutputLog, Outputs, readable, to_host
from profiling.components.snapshot import Structure
from profiling.errors import InputError, did_you_mean

#: A trajectory is made shorter where its eager calls take longer than this, in seconds, but not below two calls.
SECONDS = 10.0
#: A trajectory is made shorter where its outputs have more elements than this, which take minutes to compare.
ELEMENTS = 2**28
#: Calls that test whether state that is assigned anew is read.
_TESTED = 4


@dataclass(frozen=True)
class Played:
    """What each call of a trajectory returned, and the state after the last one, in host memory or a file."""

    log: OutputLog
    state: Outputs | None = None

    @property
    def calls(self) -> int:
        """Number of calls."""
        return len(self.log)


def play(
    component: Component,
    run: Callable[[], Any],
    calls: int,
    *,
    reset: bool = True,
    seed: int = 0,
    around: Callable[[Callable[[], Any]], Any] | None = None,
) -> Iterator[Outputs]:
    """Yield the output of each of `calls` calls of `run` from S0, and the inputs after it, in host memory.

    The global random number generators begin with the same seed, to which `seed` is added. `around` makes the call,
    where something is to happen before or after it.
    """
    component.draw(calls)
    if reset:
        component.reset()
    seed_generators(component.seed + CHECK_SEED + seed)
    for call in range(calls):
        component.feed(call)
        yield to_host(output=run() if around is None else around(run), inputs=component.kept.drawn())


def played(
    component: Component,
    run: Callable[[], Any],
    calls: int,
    *,
    reset: bool = True,
    seed: int = 0,
    most_s: float = math.inf,
) -> Played:
    """Play a trajectory and keep its outputs and the state after it.

    It ends after `most_s` seconds, but not before the second call.
    """
    log, started = OutputLog(), perf_counter()
    for outputs in play(component, run, calls, reset=reset, seed=seed):
        log.append(outputs)
        if len(log) >= min(2, calls) and perf_counter() - started > most_s:
            break
    return Played(log, state_of(component) if len(log) == calls else None)


def state_of(component: Component) -> Outputs | None:
    """Return what calls change, as it is now; None where sides do not begin with the same state."""
    return None if component.policy == "none" else to_host(state=component.kept.values())


def learn(component: Component, *, watched: bool = True) -> Played:
    """Play a trajectory eagerly, observe what its calls change, and choose how many calls it has.

    Where calls fail, they are made again without `watched` operators: some code refuses that (FlexAttention).
    Afterwards `component.kept.effects` says what calls change, and `component.place.calls` is the length of every later
    trajectory: fewer than asked for where calls are slow, return much, or fail because a cache is full.

    Raises:
        InputError: the module fails on its inputs, returns nothing that can be compared, or reads an input of an
            earlier call, in whose memory the next one lies.
        Exception: a failure of the device, unchanged.

    """
    component.reset()
    observer, log = component.kept.observer(), OutputLog()
    wanted, started, failure = component.place.calls, perf_counter(), None

    def observed(run: Callable[[], Any]) -> Any:
        with observer.calling(watched=watched):
            output = run()
        observer.after_call(output)
        return output

    calls = play(component, component.call, wanted, reset=False, around=observed)
    while len(log) < component.place.calls:
        try:
            outputs = next(calls)
        except Exception as error:
            failure = error
            break
        log.append(outputs)
        if len(log) == 1:
            check_comparable(component, outputs)
            seconds = component.place.call_s or perf_counter() - started
            component.place.calls = _affordable(wanted, outputs, seconds)
    if failure is not None and watched:
        del failure  # with the tensors of its frames
        component.place.calls = wanted
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()  # it remembers what it could not compile inside the mode
        return learn(component, watched=False)
    if failure is not None:
        if not len(log):
            component.raise_explained(failure)
        component.place.calls = len(log)
    _check_ignored(component, observer.effects)
    if component.kept.learn(observer, component.ignore):
        component.place.drawn.clear()
        component.place.calls = wanted
        return learn(component)
    state, assigned = state_of(component), component.kept.effects.assigned
    if assigned:
        component.kept.test_reads(partial(_replayed, component))
        if (reason := component.kept.effects.overwritten) is not None:
            raise InputError(f"{component.name}: {reason}")
    if assigned or failure is not None:  # the state again, now that it is known what of it counts
        state = played(component, component.call, component.place.calls).state
    return Played(log, state)


def _check_ignored(component: Component, effects: Effects) -> None:
    """Raise an InputError for a path of `component.ignore` at which the module has nothing, before calls or after."""
    paths = {*Structure.of(component.kept.roots).values, *effects.numbers, *effects.assigned}
    for name in component.ignore:
        if not any(is_below(path, name) for path in paths):
            raise InputError(
                f"component.{component.key}.state.ignore (from Python: allow=): {component.name} has nothing at "
                f"{name!r}.{did_you_mean(name, paths)}"
            )


def _affordable(calls: int, first: Outputs, seconds: float) -> int:
    """Return how many calls a trajectory may have whose first call took so long and returned so much."""
    elements = max(1, sum(leaf.numbers.numel() for leaf in first.values() if leaf.numbers is not None))
    while calls > 2 and (calls * seconds > SECONDS or calls * elements > ELEMENTS):
        calls = max(2, calls // 2)
    return calls


def _replayed(component: Component, before: Callable[[], None]) -> list[Outputs]:
    """Return the outputs of the first eager calls of a trajectory, with `before()` before each, and the state then."""
    calls = min(_TESTED, component.place.calls)

    def call(run: Callable[[], Any]) -> Any:
        before()
        return run()

    outputs = list(play(component, component.call, calls, around=call))
    written = {path: each for path, each in component.kept.values().items() if path in component.kept.effects.written}
    return [*outputs, to_host(state=written)]


def check_comparable(component: Component, outputs: Outputs) -> None:
    """Check that an output holds numbers that can be compared.

    Raises:
        InputError: it holds none, or holds what cannot be compared.

    """
    output = {path: leaf for path, leaf in outputs.items() if path[0] == "output"}
    where = f"component {component.name}: forward returned"
    for path, leaf in output.items():
        if leaf.problem is not None:
            what = leaf.form if path == ("output",) else f"{readable(path)} ({leaf.form})"
            raise InputError(f"{where} {what}, which cannot be compared: {leaf.problem}.")
    tensors = [leaf.numbers for leaf in output.values() if leaf.dtype and leaf.numbers is not None]
    if not any(tensor.numel() for tensor in tensors):
        content = "only empty tensors" if tensors else f"{output['output',].form}, which holds no tensor"
        raise InputError(
            f"{where} {content}, so there is nothing to compare. Return a tensor, or a dict, tuple, list or dataclass "
            "of tensors."
        )


def seed_generators(seed: int) -> None:
    """Seed the global random number generators of torch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the global random number generators after the block."""
    host = random.getstate(), numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(host[0])
        numpy.random.set_state(host[1])
        if torch.cuda.is_initialized() and not devices:  # the block did it
            torch.cuda.manual_seed_all(torch.initial_seed())
