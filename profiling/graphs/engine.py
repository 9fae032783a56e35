"""CUDA graphs around a module for the length of a block."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import nn

from profiling.components.trees import map_tensors
from profiling.errors import InputError
from profiling.graphs.buffers import StaticInputs
from profiling.graphs.capture import CaptureError, audit_and_warm_up, capture, casts_inside, left_alone
from profiling.graphs.recording import Recording
from profiling.graphs.signature import signature
from profiling.machine.memory import held, pool_bytes


@dataclass(frozen=True)
class GraphCounters:
    """Totals since the engine was made; `held` graphs are in its cache now.

    `warmup_seconds` are those of the calls before a capture, compiling included where they compile; `capture_seconds`
    what else a new signature costs: static inputs, capture and instantiation.
    `pool_bytes` is what the pool that its graphs share has reserved on the device.
    """

    recorded: int = 0
    replayed: int = 0
    evicted: int = 0
    held: int = 0
    warmup_seconds: float = 0.0
    capture_seconds: float = 0.0
    pool_bytes: int = 0


@dataclass
class _Session:
    enabled: bool = True
    epoch: int = 0  # counts the times that graphs were switched on again
    recorded: int = 0  # graphs captured by all engines so far


SESSION = _Session()


def set_cuda_graphs(enabled: bool) -> None:
    """Switch replaying on or off for every engine of this process; off, a call runs the module itself.

    On again, an engine whose module has been given other parameters or buffers meanwhile (a cast, a checkpoint with
    `assign=True`, `train()`) drops its graphs: they read the old ones.
    """
    if enabled and not SESSION.enabled:
        SESSION.epoch += 1
    SESSION.enabled = enabled


class CudaGraphed:
    """Replays CUDA graphs of `module`, one for each signature (see `signature`), the `max_graphs` used last.

    All graphs share one memory pool: their outputs stay, their intermediates overlap, so they may be replayed in any
    order but only one after the other. The output is a copy that is the caller's to keep, unless `alias_outputs` asks
    for the graph's own memory, which the next replay of any signature may overwrite. Recording leaves random numbers
    and `state()` (by default the module's buffers) as they were: the first call is one call. Replays read parameters
    and buffers where they stand, so they follow in-place changes; `clear()` after replacing them. Kernels keep the
    stream `priority` that they were captured with (0, or below for what goes first) wherever the graph is replayed.

    Raises:
        InputError: fewer than one graph or one warm-up call.

    """

    def __init__(
        self,
        module: Callable[..., Any],
        *,
        max_graphs: int = 8,
        warmup: int = 3,
        alias_outputs: bool = False,
        call: Callable[..., Any] | None = None,
        state: Callable[[], Iterable[torch.Tensor]] | None = None,
        priority: int = 0,
    ) -> None:
        if max_graphs < 1:
            raise InputError(f"max_graphs={max_graphs}: the cache needs room for at least 1 graph. Try max_graphs=8.")
        if warmup < 1:
            raise InputError(f"warmup={warmup}: capture needs at least 1 call before it. Try warmup=3.")
        if not torch.cuda.is_available():
            raise InputError("CUDA graphs need a CUDA device, and torch sees none here. Call the module itself.")
        self._module, self._call = module, module if call is None else call
        self._max_graphs, self._warmup, self._alias_outputs = max_graphs, warmup, alias_outputs
        self._priority = priority
        self._state = state or (module.buffers if isinstance(module, nn.Module) else tuple)
        self._recordings: OrderedDict[Hashable, Recording] = OrderedDict()
        self._pools: list[tuple[int, int]] = []  # the last is in use; there are more where a capture failed
        self._stream: torch.cuda.Stream | None = None  # one for all, since freed blocks are reused on their stream only
        self._recorded = self._replayed = self._evicted = 0
        self._warmup_seconds = self._capture_seconds = 0.0
        self._epoch = SESSION.epoch
        self._fingerprint: Hashable = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `module(*args, **kwargs)` would.

        Raises:
            CaptureError: a new signature whose call cannot be captured; nothing runs uncaptured in its stead.
            TypeError: an argument that cannot be part of a signature.

        """
        if not SESSION.enabled or torch.cuda.is_current_stream_capturing():  # inside a capture it becomes part of that
            return self._call(*args, **kwargs)
        key, given = self._key(args, kwargs)
        recording = self._recordings.get(key)
        if recording is None:
            recording = self._record(key, given, args, kwargs)
        else:
            self._recordings.move_to_end(key)
            self._replayed += 1
        return recording.replay(given, alias_outputs=self._alias_outputs)

    def static_inputs(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return (args, kwargs) with the graph's own input buffers as tensors, recording the signature if it is new.

        A caller that writes its inputs there and calls with these saves the copy.
        """
        key, given = self._key(args, kwargs)
        recording = self._recordings.get(key) or self._record(key, given, args, kwargs)
        return _with(recording.inputs.tensors, args, kwargs)

    @property
    def counters(self) -> GraphCounters:
        """What has been done so far; asks the allocator, so not for every call."""
        size = sum(pool_bytes(pool) for pool in self._pools) if self._recordings else 0
        counts = self._recorded, self._replayed, self._evicted, len(self._recordings)
        seconds = {"warmup_seconds": self._warmup_seconds, "capture_seconds": self._capture_seconds}
        return GraphCounters(*counts, **seconds, pool_bytes=size)

    @property
    def newest(self) -> Recording | None:
        """The recording that was used last."""
        return next(reversed(self._recordings.values()), None)

    def clear(self) -> None:
        """Free every graph, with its buffers and its share of the pool."""
        if self._recordings:
            torch.cuda.synchronize()  # nothing may be freed that a replay still reads
        self._recordings.clear()
        self._pools.clear()

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[torch.Tensor]]:
        if self._epoch != SESSION.epoch:
            self._epoch = SESSION.epoch
            self._drop_stale()
        key, given = signature(args, kwargs)
        return (getattr(self._module, "training", None), key), given

    def _drop_stale(self) -> None:
        now = fingerprint(self._module)
        if self._fingerprint != now:
            self.clear()
            self._fingerprint = now

    def _record(
        self, key: Hashable, given: list[torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Recording:
        started, warmed_before = time.perf_counter(), self._warmup_seconds
        device = _device_of(given)
        self._drop_stale()
        while len(self._recordings) >= self._max_graphs:
            torch.cuda.synchronize()
            self._recordings.popitem(last=False)
            self._evicted += 1
        if not self._recordings:
            self._pools.clear()  # a pool that lost its last graph is given up by the allocator
        generators = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
        kept = left_alone(tuple(self._state()), generators, device)
        with torch.cuda.device(device), casts_inside(), kept as put_back:
            recording = self._captured(given, args, kwargs, generators, put_back)
        self._recordings[key] = recording
        self._recorded += 1
        SESSION.recorded += 1
        self._capture_seconds += time.perf_counter() - started - (self._warmup_seconds - warmed_before)
        return recording

    def _captured(
        self,
        given: list[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        generators: list[torch.Generator],
        put_back: Callable[[], None],
    ) -> Recording:
        device = torch.device("cuda", torch.cuda.current_device())
        memory = {"before static input": held(device)}
        inputs = StaticInputs(given)
        memory["static input"] = held(device)
        static_args, static_kwargs = _with(inputs.tensors, args, kwargs)

        def call() -> Any:
            return self._call(*static_args, **static_kwargs)

        def rewind() -> None:  # every call from the same start: a position in a cache must not run past its end
            put_back()
            inputs.fill(given)

        self._stream = self._stream or torch.cuda.Stream(device, priority=self._priority)
        started = time.perf_counter()
        audit = audit_and_warm_up(call, rewind, warmup=self._warmup, stream=self._stream)
        self._warmup_seconds += time.perf_counter() - started
        written = inputs.changed(given) | {
            index for index, leaf in enumerate(inputs.tensors) if leaf.untyped_storage().data_ptr() in audit.wrote
        }
        rewind()
        before, host = fingerprint(self._module), _host_randomness()
        pool = self._pools[-1] if self._pools else torch.cuda.graph_pool_handle()
        try:
            graph, output = capture(call, stream=self._stream, pool=pool, audit=audit, generators=generators)
        except Exception:
            self._pools.append(torch.cuda.graph_pool_handle())  # the one that it failed in takes no other capture
            raise
        if pool not in self._pools:
            self._pools.append(pool)
        _refuse_what_replays_would_not_do(before != fingerprint(self._module), host != _host_randomness())
        self._fingerprint = before
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what the warm-up calls left in the allocator's cache, which the graph does not use
        memory["capture"] = held(device)
        return Recording(graph, inputs, output, frozenset(written), memory)


def _host_randomness() -> tuple[Any, ...]:
    """Return the states of the host's random number generators."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy.random.get_state()[1].tobytes()  # pyright: ignore


def _refuse_what_replays_would_not_do(replaced: bool, drew: bool) -> None:
    if replaced:
        raise CaptureError(
            "forward puts another tensor in the place of a buffer or parameter, and every replay would repeat the "
            "first call: write to it in place instead (self.pos.add_(1), self.cache[:, i].copy_(x))."
        )
    if drew:
        raise CaptureError(
            "forward draws random numbers on the host, and every replay would repeat the draw of the capture: draw on "
            "the device instead (torch.rand(..., device=x.device)), or pass the decision as an argument."
        )


def fingerprint(module: object) -> Hashable:
    """Return where a module's parameters and buffers stand and what they are, and which of its parts are training."""
    if not isinstance(module, nn.Module):
        return None
    tensors = [*module.parameters(), *module.buffers()]
    where = tuple((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in tensors)
    return where, tuple(part.training for part in module.modules())


def _device_of(given: list[torch.Tensor]) -> torch.device:
    for index, leaf in enumerate(given):
        if not leaf.is_cuda:
            raise CaptureError(
                f"input tensor {index} ({leaf.dtype}, {list(leaf.shape)}) is on {leaf.device}, and a graph would keep "
                "its value of now: move it to the GPU before the call (.cuda()), or pass a plain number."
            )
    return given[0].device if given else torch.device("cuda", torch.cuda.current_device())


def _with(
    tensors: tuple[torch.Tensor, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    leaves = iter(tensors)
    made = map_tensors(lambda _: next(leaves), (args, dict(kwargs)))
    return made[0], made[1]


__all__ = ["cuda_graphs", "set_cuda_graphs"]


@contextmanager
def cuda_graphs(module: nn.Module, **options: Any) -> Iterator[CudaGraphed]:
    """Make calls of `module` inside the block replay CUDA graphs; its hooks run around them as ever.

    `options` are those of `CudaGraphed`, which is what the block is given, for its counters. At the end the graphs are
    freed and the module is what it was, so a later block records anew and replays nothing stale.
    """
    before = vars(module).get("forward")
    graphed = CudaGraphed(module, call=module.forward, **options)
    module.forward = graphed
    try:
        yield graphed
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
        graphed.clear()
