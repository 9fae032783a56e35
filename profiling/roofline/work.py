"""The work of a call, and its roofline time: the time to move its bytes or to compute its FLOPs, the larger one.

The model: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention
from torch._higher_order_ops.out_dtype import out_dtype, out_dtype_dense
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils.flop_counter import flop_registry

from profiling.components.component import Component
from profiling.components.trees import stored_parts, tensors_in
from profiling.results.environment import Ceilings
from profiling.results.explanations import Roofline, RooflinePart
from profiling.trace.flops import counted_flops
from profiling.trace.operator_costs import (
    Access,
    Extent,
    accesses_of,
    address_of,
    distinct_bytes,
    extent_of,
    flex_accesses,
    is_custom,
    union_bytes,
)


def work_of(component: Component) -> Roofline:
    """Call the component once, eagerly, and count its work, each byte once; a stateful component is reset afterwards.

    Kinds of bytes: `weights` (parameters and buffers that the call reads; of an embedding only the selected rows),
    `state_read` and `state_written` (tensors that it may change, and those that attributes and caches hold), `inputs`,
    and `outputs` (without those that are inputs). A custom operator is assumed to write at most as many bytes of state
    as its other arguments have. Operators and their traffic are those of the eager call, nothing fused.
    """
    module = component.module
    component.reset()
    attributes = [tensor for _, tensor in component.kept.named_tensors()]
    recorder = AccessRecorder(  # a tensor of two kinds counts under the first of them
        [
            ("inputs", tensors_in(component.inputs)),
            ("state", component.state()),
            ("weights", (*module.parameters(), *module.buffers())),
            ("state", attributes),
        ]
    )
    # The recorder is entered last: the FLOP counter decomposes operators (a bicubic resize into 139).
    with counted_flops() as flops, recorder:
        output: Any = component.call()
    component.reset()
    weights_read, weights_written = recorder.bytes_by("weights")
    state_read, state_written = recorder.bytes_by("state")
    size = {
        "weights": weights_read,
        "inputs": recorder.bytes_by("inputs")[0],
        "outputs": distinct_bytes(
            part for tensor in tensors_in(output) for part in _stored(tensor) if not recorder.holds(part)
        ),
        "state_read": state_read,
        "state_written": state_written + weights_written,
    }
    unknown = {func._schema.name for func in recorder.custom if func.overloadpacket not in flop_registry}
    return Roofline(
        bytes={**size, "total": sum(size.values())},
        flops={**flops.by_class, "total": sum(flops.by_class.values())},
        flops_by_dtype=flops.by_dtype,
        operators=recorder.operators,
        traffic_bytes=recorder.traffic,
        uncounted=tuple(sorted(unknown | flops.uncounted)),
    )


@dataclass
class _StorageAccesses:
    """The parts of one storage that operators read and wrote, by the view that they used."""

    kind: str
    whole: set[Extent] = field(default_factory=set)
    rows: dict[Extent, list[Tensor]] = field(default_factory=dict)
    row_bytes: dict[Extent, int] = field(default_factory=dict)
    selected: dict[Extent, int] = field(default_factory=dict)
    written: dict[Extent, int] = field(default_factory=dict)

    def read(self, access: Access) -> None:
        extent = extent_of(access.tensor)
        if access.rows is not None:
            self.rows.setdefault(extent, []).append(access.rows.detach().clone().flatten())
            self.row_bytes[extent] = access.row_bytes
        elif access.bytes < extent[2]:
            self.selected[extent] = max(self.selected.get(extent, 0), access.bytes)
        elif extent[2]:
            self.whole.add(extent)

    def write(self, access: Access) -> None:
        extent = extent_of(access.tensor)
        self.written[extent] = min(extent[2], self.written.get(extent, 0) + access.bytes)

    def bytes_read(self) -> int:
        partial = 0
        for extent in {*self.rows, *self.selected} - self.whole:
            size = self.selected.get(extent, 0)
            if extent in self.rows:
                size += int(torch.unique(torch.cat(self.rows[extent])).numel()) * self.row_bytes[extent]
            partial += min(extent[2], size)
        return union_bytes(self.whole) + partial

    def bytes_written(self) -> int:
        return min(union_bytes(self.written), sum(self.written.values()))


class AccessRecorder(TorchDispatchMode):
    """While it is entered, records the bytes that operators read and write of the given tensors, each byte once.

    Embeddings and `index_select` count as their distinct rows. `operators` is the number of operators except those that
    only make a view, `traffic` the sum of the bytes that they read and wrote, `custom` the set of custom operators.
    """

    supports_higher_order_operators = True

    def __init__(self, kinds: Iterable[tuple[str, Iterable[Tensor]]]) -> None:
        super().__init__()
        self.operators, self.traffic = 0, 0
        self.custom: set[Any] = set()
        self._storages: dict[int, _StorageAccesses] = {}
        for kind, tensors in kinds:
            for tensor in tensors:
                for stored in _stored(tensor):
                    self._storages.setdefault(address_of(stored), _StorageAccesses(kind))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(is_traceable_wrapper_subclass, tensors_in((tuple(args), dict(kwargs))))):
            return NotImplemented  # a quantised weight, for example: its own operators follow
        if func is out_dtype:  # torch's FLOP counter cannot run it: run the product that it stands for, and count that
            with self:
                return out_dtype_dense(*args, **kwargs)
        result = func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload):
            self._record(func, *accesses_of(func, args, kwargs, result))
        elif func is flex_attention:
            self._record(func, *flex_accesses(args, result[0]))
        return result

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the tensor lies in the storage of one of the given tensors."""
        return address_of(tensor) in self._storages

    def bytes_by(self, kind: str) -> tuple[int, int]:
        """Return the bytes (read, written) of the tensors given as `kind`."""
        storages = [storage for storage in self._storages.values() if storage.kind == kind]
        return sum(storage.bytes_read() for storage in storages), sum(storage.bytes_written() for storage in storages)

    def _record(self, func: Any, reads: Sequence[Access], writes: Sequence[Access]) -> None:
        if not writes:
            return
        self.operators += 1
        self.traffic += sum(access.bytes for access in (*reads, *writes))
        if isinstance(func, torch._ops.OpOverload) and is_custom(func):
            self.custom.add(func)
        for access in reads:
            if (storage := self._storages.get(address_of(access.tensor))) is not None:
                storage.read(access)
        for access in writes:
            if (storage := self._storages.get(address_of(access.tensor))) is not None:
                storage.write(access)


def _stored(tensor: Any) -> Iterator[Tensor]:
    """Yield the tensors with storage: `tensor`, or those in a sparse one or a subclass (a quantised weight)."""
    if not is_traceable_wrapper_subclass(tensor):
        yield from stored_parts(tensor)
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _stored(getattr(tensor, name))


def memory_and_compute_ms(work: RooflinePart, ceilings: Ceilings) -> tuple[float, float]:
    """Return the milliseconds of the bytes at the bandwidth, and of the FLOPs at the ceilings of their dtypes.

    Memory and compute may overlap, so the larger one is the roofline time.
    """
    size = work.bytes["total"]
    return 1e3 * size / ceilings.bytes_per_s(size), sum(ceilings.compute_ms(work.flops_by_dtype).values())
