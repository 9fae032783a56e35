"""What one eager call of a component must do at least: bytes that cross the memory bus, and FLOPs by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.flop_counter import flop_registry

from profiling.core.components import Component
from profiling.core.trees import named_tensors
from profiling.limits.extents import address_of, distinct_bytes
from profiling.limits.flops import counted_flops
from profiling.limits.touched import Touched


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
