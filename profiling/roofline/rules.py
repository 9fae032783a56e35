"""The rules: from the evidence on a call to what bounds it, why, and what to try next.

`RULES` is one table, read from the top; the first rule that holds decides. What bounds a single kernel is at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from profiling.results.environment import NEAR_CEILING, Ceilings
from profiling.results.explained import Bound, Kernel, KernelBound, NextStep, Prediction, RooflinePart
from profiling.roofline.evidence import BEYOND, Evidence, observations, times

#: Share of the wall time from which copies, or the gaps between kernels, bound a call.
LARGE = 0.25
#: Share from which gaps do if nothing else takes more.
GAPS = 0.15
#: Share from which what a ceiling explains bounds a call; below LARGE no ceiling is near.
MOST = 0.5
#: The same of the operators of a CPU.
MOST_ON_CPU = 0.3
#: Number of kernels from which a call counts as a chain of short kernels.
CHAIN = 20
#: Fewest kernels between two waits of the host (`.item()`, a copy) with which it can launch ahead of the GPU.
KERNELS_A_WAIT = 32
#: Wall time per launch, as a multiple of the launch cost, from which the host must be busy with something else.
HOST_FACTOR = 20.0
#: Least predicted saving, as a share of the wall time, for which a step is proposed.
WORTH = 0.05

#: What mends a finding, for kinds with a known cure. Of others only the time at the ceiling is known.
_CURES = {
    "layout conversion": "keep tensors in the memory layout that the kernels beside them want",
    "cast": "keep tensors in the dtype in which they are read",
    "bias or activation": "fuse them into the products and convolutions before them",
    "1x1 convolution": "compute them as matrix products",
    "split-K": "use product kernels that add up in one pass",
    "memset": "write into buffers that need no clearing",
    "few rows": "use kernels for few rows, which read the weights at full bandwidth",
}


def _capture(e: Evidence) -> Iterator[NextStep]:
    variant = "compile_cuda_graph" if e.here.fused else "cuda_graph"
    yield NextStep(words=variant, advice=f"capture the step ({variant})", variant=variant, wall_ms=e.replay_ms)


def _move_host_work(e: Evidence) -> Iterator[NextStep]:
    advice = "move the host's other work out of the step, or into the graph"
    yield NextStep(words="move host work out", advice=advice, wall_ms=e.replay_ms)


def _fewer_kernels(e: Evidence) -> Iterator[NextStep]:
    variant = "compile_cuda_graph"
    if not e.here.fused and e.here.compiles:
        yield NextStep(words=variant, advice=f"fuse kernels and capture the step ({variant})", variant=variant)


def _fuse(e: Evidence) -> Iterator[NextStep]:
    """Propose to leave out the traffic between operators, with the time that remains without it."""
    if e.fusable > WORTH and e.here.compiles:
        variant = "compile_cuda_graph" if e.captured else "compile"
        advice = f"fuse operators ({variant}), which leaves out traffic of {e.fusable:.0%} of wall time"
        predicted = e.wall_ms * max(e.roofline, 1 - e.fusable)
        yield NextStep(words=variant, advice=advice, variant=variant, wall_ms=predicted)


def _compile(e: Evidence) -> Iterator[NextStep]:
    if not e.here.fused and e.here.compiles:
        yield NextStep(words="compile", advice="fuse operators (compile)", variant="compile")


def _mend(e: Evidence) -> Iterator[NextStep]:
    """Propose what mends the finding that saves most."""
    for found in e.findings[:1]:
        spent, saved = e.overlap * found.ms, e.overlap * found.saves_ms
        if saved >= WORTH * e.wall_ms:
            cure = _CURES.get(found.kind, "use faster kernels")
            if e.few_blocks(found.blocks):
                cure = "split the work over more blocks, which leave most of the GPU idle now"
            advice = f"{found.what}: {cure} (at best {spent - saved:.2g} of {spent:.2g} ms)"
            yield NextStep(words=found.what, advice=advice, wall_ms=e.wall_ms - saved)


def _tune(e: Evidence) -> Iterator[NextStep]:
    tunable, variant = sum(each.ms for each in e.kernels if each.kind in ("gemm", "conv")), "compile_max_autotune"
    if e.here.compiles and tunable > MOST * sum(each.ms for each in e.kernels):
        yield NextStep(words=variant, advice=f"tune GEMMs and convolutions ({variant})", variant=variant)


def _trace(e: Evidence) -> Iterator[NextStep]:
    if not e.traced:
        advice = "trace it (trace=true), which names the kernels far below the ceilings and what each could save"
        yield NextStep(words="trace=true", advice=advice)


def _narrower(e: Evidence) -> Iterator[NextStep]:
    """Propose a narrower dtype than float32; none of 8 bits, which change the results by design."""
    if e.dtype == "float32" and e.on_gpu:
        tf32 = " or TF32 (tf32=true)" if e.compute > e.memory and not e.here.tf32 else ""
        yield NextStep(words="bfloat16", advice=f"compute in bfloat16{tf32}")


def _less_work(e: Evidence) -> Iterator[NextStep]:
    """Propose what reduces the work of a call at its ceiling."""
    steps = [*_narrower(e)]
    if e.memory >= e.compute and e.weights >= MOST:
        steps.append(NextStep(words=_BATCH.words, advice=f"{_BATCH.advice}, which read the weights once"))
    work = "FLOPs" if e.compute > e.memory else "bytes"
    at_ceiling = NextStep(words="at its ceiling", advice=f"nothing but fewer {work} makes it much faster")
    yield from steps or [at_ceiling]


_BATCH = NextStep(words="batch calls", advice="process several inputs a call")
_STAY = NextStep(
    words="keep data on the GPU",
    advice="keep the data on the GPU, or copy it from pinned memory with non_blocking=True",
)
_NO_WAITS = NextStep(words="remove .item(), .cpu()", advice="remove .item(), .cpu() and bool(tensor)")
_MEASURE = NextStep(words="measure ceilings again", advice="measure them again on an idle machine")
_Step = NextStep | Callable[[Evidence], Iterator[NextStep]]
_Part = TypeVar("_Part", bound=RooflinePart)
_FASTER: tuple[_Step, ...] = (_mend, _tune, _trace)


def _term(e: Evidence) -> Bound:
    """Return the larger term of the roofline time."""
    return "compute" if e.compute > e.memory else "memory bandwidth"


def _kernels(e: Evidence) -> str | None:
    """Return the kernels that take most of the call, with their share; None where none is known."""
    return ", ".join(f"{words} {share:.0%}" for words, share, _ in e.named()[:2]) or None


def _gaps(e: Evidence) -> bool:
    """Return whether a GPU that is fed kernel by kernel is idle for a large part, or for the largest one."""
    largest = e.idle >= max(e.roofline, e.fusable, e.short, GAPS)
    return e.idle >= LARGE or (largest and not e.captured and _shorter(e))


def _shorter(e: Evidence) -> bool:
    """Return whether a replay of the same kernels is predicted to be shorter."""
    return e.replay_ms is not None and e.replay_ms <= (1 - WORTH) * e.wall_ms


def _waits(e: Evidence) -> bool:
    return e.work.waits > 0 and e.work.kernels / e.work.waits < KERNELS_A_WAIT


def _chain(e: Evidence) -> bool:
    return e.on_gpu and e.work.kernels >= CHAIN and e.short > max(e.roofline, e.fusable, LARGE)


def _explains(e: Evidence, name: str) -> bool:
    """Return whether `name` (memory, compute, host) explains most of the time, kernel by kernel."""
    return e.near[name] == max(e.near.values()) and e.near[name] >= (MOST if e.on_gpu else MOST_ON_CPU)


@dataclass(frozen=True)
class Rule:
    """Where `when` holds: the bound, the reason (a format string over the evidence), and the steps, the best first.

    `decisive` names the observations that decided.
    """

    bound: Bound | Callable[[Evidence], str | None]
    when: Callable[[Evidence], bool]
    reason: str
    decisive: tuple[str, ...]
    steps: tuple[_Step, ...]


_REPLAY_GAPS = "{e.idle:.0%} of wall time are gaps between kernels of a replay and around it"
_DISPATCH = "Dispatching operators and Python take {e.near[host]:.0%} of the call"
_LOW_CEILINGS = (
    "The call is faster than its roofline time, so the ceilings are too low (other programs ran while they were "
    "measured, or its kernels are faster than the measured ones)"
)
_ROOFLINE = "The roofline time is {e.roofline:.0%} of wall time"
_BY_KERNEL = (_ROOFLINE, ("slowest", "ceilings"), (_fuse, *_FASTER))

# fmt: off
#: The first that holds decides.
RULES = (
    Rule("transfers", lambda e: e.work.transfer_ms >= LARGE * e.wall_ms,
         "Copies between host and device take the time", ("transfers",), (_STAY,)),
    # The GPU is idle.
    Rule("host", lambda e: e.idle >= LARGE and _waits(e),
         "The host waits for the GPU {waits} a call", ("waits", "idle"), (_NO_WAITS,)),
    Rule("host", lambda e: e.idle >= LARGE and e.captured and 0 < (e.replay_ms or 0.0) < MOST * e.wall_ms,
         "The replays take {e.replay_ms:.3g} of {e.wall_ms:.3g} ms", ("idle", "launches"), (_move_host_work,)),
    Rule("underfilled GPU", lambda e: e.idle >= LARGE and e.captured,
         _REPLAY_GAPS, ("idle", "kernels"), (_fewer_kernels, _BATCH)),
    Rule("underfilled GPU", lambda e: _gaps(e) and e.replay_ms is not None and not _shorter(e),
         "A call does too little work for this GPU", ("idle", "launches"), (_BATCH,)),
    Rule("host", lambda e: _gaps(e) and 0 < HOST_FACTOR * e.launching < 1,
         "The host is busy between launches", ("launches", "idle"), (_capture,)),
    Rule("launch overhead", _gaps,
         "{e.idle:.0%} of wall time are gaps between launches", ("idle", "launches"), (_capture,)),
    # The roofline explains the call.
    Rule(_term, lambda e: e.roofline > BEYOND, _LOW_CEILINGS, ("ceilings",), (_MEASURE,)),
    Rule(_term, lambda e: e.roofline >= MOST, _ROOFLINE, ("ceilings", "slowest"), (_less_work,)),
    # The GPU is busy.
    Rule("underfilled GPU", lambda e: _chain(e) and e.underfilled,
         "Many kernels are short", ("kernels", "slowest"), (_fewer_kernels, *_FASTER, _BATCH)),
    Rule(_kernels, _chain, "Many kernels are short", ("slowest", "kernels"), (_fewer_kernels, *_FASTER)),
    Rule("memory bandwidth", lambda e: e.on_gpu and e.fusable > max(e.roofline, LARGE) and e.here.compiles,
         "Each operator reads and writes its own tensors", ("traffic", "slowest"), (_fuse, *_FASTER)),
    Rule("memory bandwidth", lambda e: e.on_gpu and _explains(e, "memory"), *_BY_KERNEL),
    Rule("compute", lambda e: e.on_gpu and _explains(e, "compute"), *_BY_KERNEL),
    Rule("underfilled GPU", lambda e: e.on_gpu and e.roofline < LARGE and e.underfilled, *_BY_KERNEL),
    Rule(_kernels, lambda e: e.on_gpu and e.roofline < LARGE, *_BY_KERNEL),
    Rule(_term, lambda e: e.on_gpu, _ROOFLINE, ("ceilings", "slowest"), (_narrower, _fuse, *_FASTER)),
    # A CPU, by its operators.
    Rule("host", lambda e: _explains(e, "host"), _DISPATCH, ("host", "slowest"), (_compile,)),
    Rule("memory bandwidth", lambda e: _explains(e, "memory"),
         "Operators near the bandwidth take the time", ("slowest", "traffic"), (_fuse,)),
    Rule("compute", lambda e: _explains(e, "compute"),
         "Operators near the FLOP ceiling take the time", ("slowest", "ceilings"), ()),
    Rule(_kernels, lambda e: True,
         "Operators run far below the ceilings", ("slowest", "ceilings"), (_compile,)),
)
# fmt: on


def judge(section: _Part, e: Evidence) -> _Part:
    """Return the section with what bounds the call, the evidence (what decided comes first), and the steps, best first.

    The bound names the kernels that take most of the call where no rule has a word; it is absent where these are not
    known either, and on a GPU whose work was not profiled, unless a ceiling explains the time.
    """
    section = replace(
        section,
        over_roofline=e.wall_ms / section.roofline_ms if section.roofline_ms else None,
        idle_share=e.idle if e.profiled else None,
    )
    if e.on_gpu and not e.profiled and e.roofline < MOST:
        return section
    rule, lines = next(rule for rule in RULES if rule.when(e)), observations(e)
    steps = tuple(step for each in rule.steps for step in ((each,) if isinstance(each, NextStep) else each(e)))
    judged = replace(
        section,
        bound=rule.bound if isinstance(rule.bound, str) else rule.bound(e),
        evidence=tuple(lines[name] for name in dict.fromkeys((*rule.decisive, *lines)) if name in lines),
        steps=steps,
    )
    if not steps:
        return judged
    best, reason = steps[0], rule.reason.format(e=e, waits=times(e.work.waits))
    predicted = None
    if best.variant is not None and best.wall_ms is not None:
        predicted = Prediction(variant=best.variant, wall_ms=best.wall_ms)
    return replace(
        judged,
        next_step=best.words,
        advice=f"{reason}: {best.advice}.",
        predicted=predicted,
    )


#: Share of its peak (0 to 1), by counters, from which a resource bounds a kernel. Below 60% the rule of Nsight
#: Compute's section Speed of Light (`SpeedOfLight.py`, latency_bound_threshold) reports latency issues.
NEAR_PEAK = 0.6


def bound_by_trace(kernel: Kernel, ceilings: Ceilings | None) -> KernelBound | None:
    """Return what bounds a kernel by its bytes, FLOPs and mean duration; None where neither rate is known.

    The trace counts the bytes of an operator once, so "memory bandwidth" means that no kernel moves these bytes much
    faster: for few bytes, which a cache holds, the ceiling is the rate of L2. Counters also see what L2 carries beyond
    these bytes, and with L2 near its peak and DRAM far below, a kernel that reads each byte once would be faster: the
    trace says "neither" of it, but cannot tell that L2 is the reason (docs/results/h200/counters).
    """
    if ceilings is None or not kernel.mean_us or (kernel.gbps is None and kernel.tflops is None):
        return None
    memory, compute = ceilings.shares(kernel)
    if max(memory, compute) < NEAR_CEILING:
        return "neither"
    return "compute" if compute > memory else "memory bandwidth"


def bound_by_counters(
    dram: float | None, l2: float | None, tensor: float | None, fma: float | None
) -> KernelBound | None:
    """Return what bounds a kernel with these shares of the peak of DRAM, L2, tensor and FMA pipes; None without any.

    "L2 bandwidth" is that of L2 alone. A kernel busy with other instructions, such as address arithmetic, has neither.
    """
    if all(share is None for share in (dram, l2, tensor, fma)):
        return None
    memory, cache, compute = dram or 0.0, l2 or 0.0, max(tensor or 0.0, fma or 0.0)
    if max(memory, cache, compute) < NEAR_PEAK:
        return "neither"
    if compute > max(memory, cache):
        return "compute"
    return "memory bandwidth" if memory >= NEAR_PEAK else "L2 bandwidth"
