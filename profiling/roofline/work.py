"""The least time that a call can take on this device: the slower of moving its bytes and doing its FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.flop_counter import flop_registry

from profiling.components.component import Component
from profiling.components.trees import named_tensors
from profiling.machine.ceilings import Ceilings
from profiling.trace.operator_costs import Touched, address_of, counted_flops, distinct_bytes


@dataclass(frozen=True)
class Work:
    """Of one call: `bytes` by what they are of, each byte once, and `flops` by class of operator.

    `weights` are parameters and buffers that the call touches and leaves as they are (of an embedding the rows that it
    takes), `state` what it may change (of an operator from outside torch, which says nothing of it, at most
    as much as it is given), `outputs` what it returns that is no input of its own. Tensors that a module
    keeps as plain attributes are none of these. `operators` and `traffic` (bytes) are those of the eager call with
    nothing fused. `foreign` are operators from outside torch that registered no formula: nobody counts their FLOPs.
    """

    bytes: Mapping[str, int]
    flops: Mapping[str, int]
    operators: int
    traffic: int
    foreign: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """All bytes."""
        return sum(self.bytes.values())

    @property
    def total_flops(self) -> int:
        """All FLOPs that are counted."""
        return sum(self.flops.values())


def work_of(component: Component) -> Work:
    """Call the component once, eagerly, and add up what it did; a stateful one starts and ends at its reset state."""
    component.reset()
    touched = Touched(_kinds(component))
    # The counter takes operators apart to count them (a bicubic resize into 139), so it must not come first.
    with counted_flops() as flops, touched:
        output: Any = component.call()
    component.reset()
    weights, changed = touched.bytes_by("weights")
    state_read, state_written = touched.bytes_by("state")
    inputs, _ = touched.bytes_by("inputs")
    made = [t for _, t in named_tensors(output) if address_of(t) not in touched.storages]
    found = {
        "weights": weights,
        "inputs": inputs,
        "outputs": distinct_bytes(made),
        "state_read": state_read,
        "state_written": state_written + changed,
    }
    uncounted = {func._schema.name for func in touched.foreign if func.overloadpacket not in flop_registry}
    return Work(found, flops, touched.operators, touched.traffic, tuple(sorted(uncounted)))


def _kinds(component: Component) -> dict[str, tuple[Any, ...]]:
    """Return what a call may touch; a tensor that is in two of them is what the first one says."""
    module, own = component.module, getattr(component.module, "state_tensors", None)
    return {
        "inputs": tuple(component.inputs.values()),
        "state": () if own is None else tuple(own()),
        "weights": (*module.parameters(), *module.buffers()),
    }


@dataclass(frozen=True)
class Floor:
    """Both terms in milliseconds; they may overlap in time, so the larger one is the floor (the roofline model).

    Source: Williams, Waterman, Patterson, Roofline: an insightful visual performance model (2009).
    """

    memory_ms: float
    compute_ms: float

    @property
    def ms(self) -> float:
        """The floor."""
        return max(self.memory_ms, self.compute_ms)


def floor_of(work: Work, ceilings: Ceilings) -> Floor:
    """Return the floor of `work`; its FLOPs at the rate of the run's dtype, whatever single operators compute in."""
    size = work.total_bytes
    return Floor(
        memory_ms=1e3 * size / ceilings.bytes_per_s(size),
        compute_ms=1e3 * work.total_flops / ceilings.flops_per_s,
    )


def traffic_ms(work: Work, ceilings: Ceilings) -> float:
    """Return how long the eager operators' reads and writes take when each runs by itself."""
    return 1e3 * work.traffic / ceilings.bytes_per_s(work.traffic)
