"""CudaGraphed: a module whose calls replay CUDA graphs, one for each signature, in one memory pool.

A call with a new signature warms the module up on a side stream and captures it; a call with a known one copies its
inputs into static buffers and replays. `cuda_graphs` puts a CudaGraphed around an existing module for a block.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import torch
from torch import nn

from profiling.components.effects import storage_of
from profiling.components.outputs import to_host
from profiling.components.state import State
from profiling.components.trees import keyed_leaves, map_tensors, stored_parts
from profiling.errors import InputError, check_whole
from profiling.graphs.capture import (
    Audit,
    CaptureError,
    audit_and_warm_up,
    capture,
    no_autocast_cache,
    preserved_generators,
)
from profiling.graphs.captured_call import CapturedCall, StaticInputs
from profiling.graphs.signature import signature
from profiling.machine.memory import held, pool_bytes

#: Calls from which it is learned what a call changes in the module.
_OBSERVED = 3


@dataclass(frozen=True)
class GraphCounters:
    """Totals since the engine was created, and the size of its cache now.

    `recorded` captures, `replayed` replays, `evicted` graphs dropped for others, `held` graphs in the cache now.
    `warmup_seconds` is the time of the calls before a capture, compilation included where they compile;
    `capture_seconds` the rest of the cost of new signatures: static inputs, capture and instantiation. `pool_bytes` is
    what the memory pool that the graphs share has reserved on the device.
    """

    recorded: int = 0
    replayed: int = 0
    evicted: int = 0
    held: int = 0
    warmup_seconds: float = 0.0
    capture_seconds: float = 0.0
    pool_bytes: int = 0


@dataclass
class _Process:
    """State that all engines of this process share."""

    enabled: bool = True
    epoch: int = 0  # number of times that graphs were switched on again
    captures: int = 0
    seconds: float = 0.0


_PROCESS = _Process()


def set_cuda_graphs(enabled: bool) -> None:
    """Switch replaying on or off for every engine of this process; while it is off, a call runs the module itself.

    When it is switched on again, an engine whose module has other parameters or buffers by then (a cast, a checkpoint
    loaded with `assign=True`, `train()`) drops its graphs, which read the old ones.
    """
    if enabled and not _PROCESS.enabled:
        _PROCESS.epoch += 1
    _PROCESS.enabled = enabled


def total_captures() -> int:
    """Return the number of graphs that all engines of this process have captured so far."""
    return _PROCESS.captures


def capture_seconds() -> float:
    """Return the seconds that these captures took, with their warm-up calls."""
    return _PROCESS.seconds


class CudaGraphed:
    """Replays CUDA graphs of `module`, one for each signature; keeps the `max_graphs` used last.

    All graphs share one memory pool: their outputs are kept apart and their intermediates overlap, so they may be
    replayed in any order but only one after the other. The output is a copy that the caller may keep, unless
    `alias_outputs` asks for the graph's own memory, which the next replay of any signature may overwrite.

    Args:
        module: the module or function to call. Its parameters and buffers are read at their addresses, so a replay
            follows in-place changes; call `clear()` after replacing them.
        max_graphs: number of graphs in the cache.
        warmup: calls before a capture, at least 1.
        alias_outputs: return the graph's own memory instead of a copy.
        call: the function to capture instead of `module`, its compiled form for example.
        keep_state: takes a snapshot of what a call may change, and returns the function that restores it. Capturing
            leaves that, and the random number generators, as they were, so that the first call counts once. Default:
            all that the module's attributes hold; what it makes in its first calls stays allocated.
        generators: returns the random number generators of the module, which advance with each replay. Default: those
            that its attributes hold.
        check_state: refuse a module whose Python state a replay cannot follow.
        allow: paths of such state that outputs do not depend on: a counter for statistics.
        priority: of the stream to capture on (0 or negative, negative runs first). Kernels keep it in every replay.

    Raises:
        InputError: fewer than one graph or one warm-up call, or no CUDA device.

    """

    def __init__(
        self,
        module: Callable[..., Any],
        *,
        max_graphs: int = 8,
        warmup: int = 3,
        alias_outputs: bool = False,
        call: Callable[..., Any] | None = None,
        keep_state: Callable[[], Callable[[], None]] | None = None,
        generators: Callable[[], Sequence[torch.Generator]] | None = None,
        check_state: bool = True,
        allow: Sequence[str] = (),
        priority: int = 0,
    ) -> None:
        check_options(max_graphs=max_graphs, warmup=warmup)
        if not torch.cuda.is_available():
            raise InputError("CUDA graphs need a CUDA device, and torch finds none here. Call the module itself.")
        self._module, self._call = module, module if call is None else call
        self._max_graphs, self._warmup, self._alias_outputs = max_graphs, warmup, alias_outputs
        self._priority = priority
        self._keep_state, self._generators = keep_state, generators
        self._check_state, self._allow = check_state, tuple(allow)
        self._captured: OrderedDict[Hashable, CapturedCall] = OrderedDict()
        self._pools: list[tuple[int, int]] = []  # the last is in use; there are more where a capture failed
        self._stream: torch.cuda.Stream | None = None  # one for all: freed blocks are reused on their own stream only
        self._recorded = self._replayed = self._evicted = 0
        self._warmup_seconds = self._capture_seconds = 0.0
        self._epoch = _PROCESS.epoch
        self._fingerprint: Hashable = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `module(*args, **kwargs)` would.

        Raises:
            CaptureError: the call has a new signature and cannot be captured; it is never run eagerly instead.

        """
        # A call inside another capture becomes part of that.
        if not _PROCESS.enabled or torch.cuda.is_current_stream_capturing():
            return self._call(*args, **kwargs)
        key, inputs = self._key(args, kwargs)
        captured = self._captured.get(key)
        if captured is None:
            captured = self._capture(key, inputs, args, kwargs)
        else:
            self._captured.move_to_end(key)
            self._replayed += 1
        return captured.replay(inputs, alias_outputs=self._alias_outputs)

    def static_step(self, **kwargs: Any) -> tuple[dict[str, Any], Callable[[], Any]] | None:
        """Return the graph's own input buffers as arguments, and a function that replays on what lies there.

        None where calls with them would not replay the graph of `kwargs`.
        """
        _, static = self.static_inputs(**kwargs)
        return (static, partial(self, **static)) if self._key((), static)[0] == self._key((), kwargs)[0] else None

    def static_inputs(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return (args, kwargs) with the graph's own input buffers as tensors; captures if the signature is new.

        A caller that writes its inputs there and calls with these saves the copy.
        """
        key, inputs = self._key(args, kwargs)
        captured = self._captured.get(key) or self._capture(key, inputs, args, kwargs)
        return _with_tensors(captured.inputs.tensors, args, kwargs)

    @property
    def counters(self) -> GraphCounters:
        """Totals so far. Takes a snapshot of the allocator, which is too slow for every call."""
        return GraphCounters(
            recorded=self._recorded,
            replayed=self._replayed,
            evicted=self._evicted,
            held=len(self._captured),
            warmup_seconds=self._warmup_seconds,
            capture_seconds=self._capture_seconds,
            pool_bytes=sum(pool_bytes(pool) for pool in self._pools) if self._captured else 0,
        )

    @property
    def newest(self) -> CapturedCall | None:
        """The captured call that was used last."""
        return next(reversed(self._captured.values()), None)

    def clear(self) -> None:
        """Free every graph, with its buffers and its share of the pool."""
        if self._captured:
            torch.cuda.synchronize()  # a replay may still read what is freed
        self._captured.clear()
        self._pools.clear()

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[torch.Tensor]]:
        if self._epoch != _PROCESS.epoch:
            self._epoch = _PROCESS.epoch
            self._drop_stale()
        key, inputs = signature(args, kwargs)
        return (getattr(self._module, "training", None), key), inputs

    def _drop_stale(self) -> None:
        fingerprint = layout_of(self._module)
        if self._fingerprint != fingerprint:
            self.clear()
            self._fingerprint = fingerprint

    def _capture(
        self, key: Hashable, inputs: list[torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> CapturedCall:
        """Capture the call, evicting the graph used longest ago where the cache is full."""
        started, warmup_before = time.perf_counter(), self._warmup_seconds
        device = _device_of(inputs)
        self._drop_stale()
        while len(self._captured) >= self._max_graphs:
            torch.cuda.synchronize()
            self._captured.popitem(last=False)
            self._evicted += 1
        if not self._captured:
            self._pools.clear()  # a pool without graphs is freed by the allocator
        with torch.cuda.device(device), no_autocast_cache():
            captured = self._warm_up_and_capture(inputs, args, kwargs)
        self._captured[key] = captured
        self._recorded += 1
        _PROCESS.captures += 1
        _PROCESS.seconds += time.perf_counter() - started
        self._capture_seconds += time.perf_counter() - started - (self._warmup_seconds - warmup_before)
        return captured

    def _warm_up_and_capture(
        self, inputs: list[torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> CapturedCall:
        device = torch.device("cuda", torch.cuda.current_device())
        memory = {"before static input": held(device)}
        static = StaticInputs(inputs)
        memory["static input"] = held(device)
        static_args, static_kwargs = _with_tensors(static.tensors, args, kwargs)
        given = [leaf for _, leaf in keyed_leaves((args, kwargs)) if isinstance(leaf, torch.Generator)]

        def call() -> Any:
            return self._call(*static_args, **static_kwargs)

        self._stream = self._stream or torch.cuda.Stream(device, priority=self._priority)
        started = time.perf_counter()
        with preserved_generators(given, device) as restore_generators:
            state = None if self._keep_state else self._warmed_up(call, (static_args, static_kwargs))
            restore_state = state.restore if state is not None else self._keep_state()  # pyright: ignore[reportOptionalCall]

            def refill() -> None:
                restore_generators()
                static.copy_in(inputs)

            def rewind() -> None:  # each call starts from the same state: a cache position must not run past its end
                restore_state()
                refill()

            try:
                if state is not None and self._check_state:
                    self._refuse_python_state(call, refill, state)
                audit = audit_and_warm_up(call, rewind, warmup=self._warmup, stream=self._stream)
                self._warmup_seconds += time.perf_counter() - started
                written = static.changed(inputs) | {
                    index for index, tensor in enumerate(static.tensors) if storage_of(tensor) in audit.written
                }
                rewind()
                own = self._generators() if self._generators else [] if state is None else state.generators()
                generators = list({id(each): each for each in (*given, *own)}.values())
                graph, output = self._captured_graph(call, audit, generators)
            finally:
                rewind()
                if state is not None:
                    state.restore_cold()
        self._fingerprint = layout_of(self._module)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # blocks of the warm-up calls, which the graph does not use
        memory["capture"] = held(device)
        return CapturedCall(graph, static, output, frozenset(written), memory, state)

    def _captured_graph(
        self, call: Callable[[], Any], audit: Audit, generators: Sequence[torch.Generator]
    ) -> tuple[torch.cuda.CUDAGraph, Any]:
        on_host = [each for each in generators if each.device.type == "cpu"]
        host_random = _host_random_state(on_host)
        pool = self._pools[-1] if self._pools else torch.cuda.graph_pool_handle()
        assert self._stream is not None
        on_device = [each for each in generators if each.device.type == "cuda"]
        try:
            graph, output = capture(call, stream=self._stream, pool=pool, audit=audit, generators=on_device)
        except Exception:
            self._pools.append(torch.cuda.graph_pool_handle())  # no other capture may use the pool of a failed one
            raise
        if pool not in self._pools:
            self._pools.append(pool)
        if host_random != _host_random_state(on_host):
            raise CaptureError(
                "forward draws random numbers on the host, and every replay would repeat those of the capture: draw "
                "them on the device instead (torch.rand(..., device=x.device)), or pass the decision as an argument."
            )
        return graph, output

    def _warmed_up(self, call: Callable[[], Any], inputs: Any) -> State:
        """Call the module until the structure of its state repeats; return its state from there on."""
        owner: Any = getattr(self._module, "__self__", self._module)
        state = State(owner, inputs, "snapshot")
        state.begin(keep_cold=True)
        try:
            calls = state.warm_up(lambda _: (call(), True)[1], watched=self._call is self._module)
        except Exception:
            state.restore_cold()
            raise
        state.settle(calls)
        return state

    def _refuse_python_state(self, call: Callable[[], Any], refill: Callable[[], None], state: State) -> None:
        """Make a few calls and compare what they change; `refill` puts inputs and generators in place.

        Raises:
            CaptureError: a Python number changes from call to call, or an attribute that a later call reads; or the
                first call makes state whose values cannot be put back.

        """

        def rewind() -> None:
            state.restore()
            refill()

        rewind()
        observer = state.observer()
        for _ in range(_OBSERVED):
            with observer.calling(watched=False):
                output = call()
            observer.after_call(output)
        state.learn(observer, self._allow)

        def play(before: Callable[[], None]) -> list[Any]:
            rewind()
            outputs = []
            for _ in range(_OBSERVED):
                before()
                outputs.append(to_host(output=call()))
            return outputs

        state.test_reads(play)
        if (reason := state.effects.refusal()) is not None:
            raise CaptureError(f"a CUDA graph {reason}")

        def first_call() -> Any:
            refill()
            return call()

        if (fault := state.first_values_fault(first_call)) is not None:
            raise CaptureError(f"{fault}.")


def check_options(*, max_graphs: int, warmup: int) -> None:
    """Check the options of an engine; without a warm-up, lazy initialisation fails inside the capture.

    Raises:
        InputError: fewer than one graph or one warm-up call.

    """
    check_whole("max_graphs", max_graphs)
    check_whole("warmup", warmup)


def _device_of(inputs: list[torch.Tensor]) -> torch.device:
    for index, tensor in enumerate(inputs):
        if not tensor.is_cuda:
            raise CaptureError(
                f"input tensor {index} ({tensor.dtype}, {list(tensor.shape)}) is on {tensor.device}, and a graph would "
                "keep its present value: move it to the GPU before the call (.cuda()), or pass a plain number."
            )
    return inputs[0].device if inputs else torch.device("cuda", torch.cuda.current_device())


def layout_of(module: object) -> Hashable:
    """Return addresses and forms of a module's parameters and buffers, and which of its submodules are training."""
    if not isinstance(module, nn.Module):
        return None
    tensors = [part for each in (*module.parameters(), *module.buffers()) for part in stored_parts(each)]
    forms = tuple((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in tensors)
    return forms, tuple(part.training for part in module.modules())


def _host_random_state(generators: Sequence[torch.Generator] = ()) -> tuple[Any, ...]:
    """Return the states of the random number generators of torch, Python and NumPy on the host, and of `generators`."""
    own = [each.get_state().numpy().tobytes() for each in generators]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy.random.get_state()[1].tobytes(), own  # pyright: ignore


def _with_tensors(
    tensors: tuple[torch.Tensor, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with their tensors replaced, in the order of `signature`."""
    replacements = iter(tensors)
    args, kwargs = map_tensors(lambda _: next(replacements), (args, dict(kwargs)))
    return args, dict(kwargs)


@contextmanager
def cuda_graphs(module: nn.Module, **options: Any) -> Iterator[CudaGraphed]:
    """Make calls of `module` inside the block replay CUDA graphs; its hooks run around them as before.

    `options` are those of `CudaGraphed`. The block is given the CudaGraphed, for its counters. At its end the graphs
    are freed and `module.forward` is restored, so a later block captures anew.
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
