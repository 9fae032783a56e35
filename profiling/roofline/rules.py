"""The rules: from the evidence on a call to what bounds it, why, and what to try next, with the predicted time.

`RULES` is one table, read from the top; the first rule that holds decides. What bounds a single kernel is at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from profiling.results.environment import NEAR_CEILING, Ceilings
from profiling.results.explanations import Bound, Kernel, KernelBound, NextStep, RooflinePart
from profiling.roofline.evidence import BEYOND, Evidence, milliseconds, observations

#: Share of the wall time from which copies, or the gaps between kernels, bound a call.
LARGE = 0.25
#: Share from which gaps do if nothing else takes more.
GAPS = 0.15
#: Share from which what a ceiling explains bounds a call; below LARGE no ceiling is near.
MOST = 0.5
#: The same of the operators of a CPU, which beside other processes reach less of the ceilings.
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
    "bias or activation": "fuse them into the GEMMs and convolutions before them",
    "1x1 convolution": "compute them as GEMMs",
    "split-K": "use GEMM kernels that add up in one pass",
    "memset": "write into buffers that need no clearing",
    "few rows": "use kernels for few rows, which read the weights at full bandwidth",
}
#: Bytes of a number, by dtype.
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Dtypes to try in place of one: 8 bits change the results by design, so they are tried for FLOPs alone.
_OTHERS = {"float32": ("bfloat16",)} | dict.fromkeys(("bfloat16", "float16"), ("float32", "float8", "int8"))

_Steps = Iterator[NextStep]


def _capture(e: Evidence) -> _Steps:
    variant = "compile+cuda_graph" if e.here.fused else "cuda_graph"
    yield NextStep(
        words=variant, advice=f"capture the call in a CUDA graph ({variant})", variant=variant, wall_ms=e.replay_ms
    )


def _move_host_work(e: Evidence) -> _Steps:
    advice = "move the host's other work out of the step, or into the graph"
    yield NextStep(words="move host work out", advice=advice, wall_ms=e.replay_ms)


def _no_waits(e: Evidence) -> _Steps:
    """Propose to let the host run ahead: the longer of its launches and the GPU's work remains."""
    least_ms = min(e.wall_ms, max(e.work.busy_ms, e.launching * e.wall_ms))
    yield NextStep(words="no .item(), .cpu()", advice="remove .item(), .cpu() and bool(tensor)", wall_ms=least_ms)


def _no_transfers(e: Evidence) -> _Steps:
    advice = "keep the data on the GPU, or copy it from pinned memory with non_blocking=True"
    yield NextStep(words="no transfers", advice=advice, wall_ms=max(0.0, e.wall_ms - e.work.transfer_ms))


def _measure_again(e: Evidence) -> _Steps:
    yield NextStep(words="measure ceilings again", advice="measure the ceilings again on an idle machine")


def _fuse(e: Evidence) -> _Steps:
    """Propose to leave out the traffic between operators, with the time that remains without it."""
    saved = min(e.fusable, 1 - e.roofline)
    if saved > WORTH and e.here.compiles:
        variant = "compile+cuda_graph" if e.captured else "compile"
        advice = f"fuse operators ({variant}), which leaves out traffic of {e.fusable:.0%} of wall time"
        yield NextStep(words=variant, advice=advice, variant=variant, wall_ms=e.wall_ms * (1 - saved))


def _compile(e: Evidence) -> _Steps:
    """Propose to fuse operators for the sake of their number; by how much that helps is not known."""
    if e.fusable <= WORTH and not e.here.fused and e.here.compiles:
        variant = "compile+cuda_graph" if e.on_gpu else "compile"
        yield NextStep(words=variant, advice=f"fuse operators ({variant})", variant=variant)


def _mend(e: Evidence) -> _Steps:
    """Propose to mend the kernels that could save most; no call is faster than its roofline."""
    for found in e.slow[:1]:
        spent, saved = e.overlap * found.ms, min(e.overlap * found.saves_ms, (1 - e.roofline) * e.wall_ms)
        if saved >= WORTH * e.wall_ms:
            cure = _CURES.get(found.kind, "use faster kernels")
            if e.few_blocks(found.blocks):
                cure = f"launch {e.here.multiprocessors} thread blocks or more, not {found.blocks:.0f} on average"
            advice = f"{found.what}: {cure} (saves at most {milliseconds(saved)} of their {milliseconds(spent)} ms)"
            yield NextStep(words=found.what, advice=advice, wall_ms=e.wall_ms - saved)


def _tune(e: Evidence) -> _Steps:
    # A convolution whose bytes are unknown was not started by an operator of torch, and torch.compile cannot tune it.
    known = (each for each in e.kernels if each.kind == "gemm" or (each.kind == "conv" and each.gbps is not None))
    tunable = sum(each.ms for each in known)
    if e.here.compiles and tunable > MOST * sum(each.ms for each in e.kernels):
        variant = "compile+max_autotune+cuda_graph" if e.on_gpu else "compile+max_autotune"
        yield NextStep(words="max_autotune", advice=f"tune GEMMs and convolutions ({variant})", variant=variant)


def _other_dtype(e: Evidence) -> _Steps:
    """Propose the dtype in which bytes and FLOPs take least at the measured ceilings."""
    times = {}
    for dtype in {e.ceilings.dtype, *e.ceilings.other_flops_per_s} & set(_OTHERS.get(e.dtype, ())):
        # 8-bit arithmetic speeds up linear layers only: convolutions and attention keep their dtype.
        share = 1.0 if dtype in _BYTES else e.linear
        compute = e.compute * (1 - share + share * e.ceilings.flops_ceiling(e.dtype) / e.ceilings.flops_ceiling(dtype))
        times[dtype] = max(e.memory * _BYTES.get(dtype, _BYTES[e.dtype]) / _BYTES[e.dtype], compute)
    dtype = min(times, key=lambda dtype: times[dtype], default=e.dtype)
    if (saved := e.roofline - times.get(dtype, e.roofline)) >= WORTH:
        how = f"(dtype={dtype})" if dtype in _BYTES else "(a quantised variant), which changes the results"
        tf32 = " or TF32 (tf32=true)" if e.on_gpu and e.dtype == "float32" and not e.here.tf32 else ""
        advice = f"compute in {dtype} {how}{tf32 if e.compute > e.memory else ''}"
        words = f"dtype={dtype}" if dtype in _BYTES else dtype
        yield NextStep(words=words, advice=advice, wall_ms=e.wall_ms * (1 - saved))


def _batch(e: Evidence) -> _Steps:
    reads = ", which read the weights once" if e.memory >= max(e.compute, MOST) and e.weights >= MOST else ""
    if reads or e.roofline < MOST:
        yield NextStep(words="batch calls", advice=f"process several inputs a call{reads}")


def _longest(e: Evidence) -> _Steps:
    """Name what takes most of the call: its roofline, or kernels."""
    if NEAR_CEILING <= e.roofline <= BEYOND:
        what, share = ("FLOPs", e.compute) if e.compute > e.memory else ("bytes", e.memory)
        took = f"{what} {milliseconds(share * e.wall_ms)} of {milliseconds(e.wall_ms)} ms"
        yield NextStep(words=took, advice=f"nothing but fewer {what} makes it much faster in {e.dtype}")
    for each in e.classes[:1]:
        yield NextStep(words=e.took(each), advice=f"look first at {e.words(each)}")


_Step = Callable[[Evidence], _Steps]
_Part = TypeVar("_Part", bound=RooflinePart)
_FASTER: tuple[_Step, ...] = (_fuse, _mend, _tune)


def _term(e: Evidence) -> Bound:
    """Return the larger term of the roofline time."""
    return "compute" if e.compute > e.memory else "memory bandwidth"


def _near(e: Evidence) -> Bound | None:
    """Return what explains most of the time, kernel by kernel; None where nothing does."""
    name = max(e.near, key=lambda name: e.near[name])
    return name if e.near[name] >= (MOST if e.on_gpu else MOST_ON_CPU) else None


def _kernels(e: Evidence) -> str | None:
    """Return the kernels that take most of the call with their shares; None where none is known."""
    return ", ".join(f"{each.what} {e.share(each.ms):.0%}" for each in e.longest()[:2]) or None


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


@dataclass(frozen=True)
class Rule:
    """Where `when` holds: the bound, the observations that decided, and the steps, the best first."""

    bound: Bound | Callable[[Evidence], str | None]
    when: Callable[[Evidence], bool]
    decisive: tuple[str, ...]
    steps: tuple[_Step, ...]


# fmt: off
#: The first that holds decides.
RULES = (
    Rule("transfers", lambda e: e.work.transfer_ms >= LARGE * e.wall_ms, ("transfers",), (_no_transfers,)),
    # The GPU is idle.
    Rule("host", lambda e: e.idle >= LARGE and _waits(e), ("waits", "idle"), (_no_waits,)),
    Rule("host", lambda e: e.idle >= LARGE and e.captured and 0 < (e.replay_ms or 0.0) < MOST * e.wall_ms,
         ("idle", "launches"), (_move_host_work,)),
    Rule("underfilled GPU", lambda e: e.idle >= LARGE and e.captured, ("idle", "kernels"), (_fuse, _compile, _batch)),
    Rule("underfilled GPU", lambda e: _gaps(e) and e.replay_ms is not None and not _shorter(e),
         ("idle", "launches"), (_batch,)),
    Rule("host", lambda e: _gaps(e) and 0 < HOST_FACTOR * e.launching < 1, ("launches", "idle"), (_capture,)),
    Rule("launch overhead", _gaps, ("idle", "launches"), (_capture,)),
    # The roofline explains the call.
    Rule(_term, lambda e: e.roofline > BEYOND, ("ceilings",), (_measure_again,)),
    Rule(_term, lambda e: e.roofline >= MOST, ("ceilings", "slowest"), (_other_dtype, *_FASTER, _batch)),
    # The device is busy.
    Rule("underfilled GPU", lambda e: _chain(e) and e.underfilled,
         ("kernels", "slowest"), (_compile, *_FASTER, _batch)),
    Rule(_kernels, _chain, ("slowest", "kernels"), (_compile, *_FASTER)),
    Rule("memory bandwidth", lambda e: e.on_gpu and e.fusable > max(e.roofline, LARGE) and e.here.compiles,
         ("traffic", "slowest"), _FASTER),
    Rule("host", lambda e: _near(e) == "host", ("host", "slowest"), (_fuse, _compile)),
    Rule(_near, lambda e: _near(e) is not None, ("slowest", "ceilings"), (_other_dtype, *_FASTER)),
    Rule("underfilled GPU", lambda e: e.roofline < LARGE and e.underfilled, ("slowest", "ceilings"), _FASTER),
    Rule(_kernels, lambda e: e.on_gpu and e.roofline < LARGE, ("slowest", "ceilings"), _FASTER),
    Rule(_kernels, lambda e: e.on_gpu, ("slowest", "ceilings"), (_other_dtype, *_FASTER)),
    Rule(_kernels, lambda e: True, ("slowest", "ceilings"), (_other_dtype, *_FASTER, _compile)),
)
# fmt: on


def judge(section: _Part, e: Evidence) -> _Part:
    """Return the section with what bounds the call, the evidence (what decided comes first), and the steps.

    Steps with a predicted time come first, what takes most of the call last. The bound names the kernels that take most
    of it where no rule has a word; it is absent where these are not known either, and on a GPU whose work was not
    profiled, unless a ceiling explains the time.
    """
    section = replace(
        section,
        over_roofline=e.wall_ms / section.roofline_ms if section.roofline_ms else None,
        idle_share=e.idle if e.profiled else None,
    )
    if e.on_gpu and not e.profiled and e.roofline < MOST:
        return section
    rule, lines = next(rule for rule in RULES if rule.when(e)), observations(e)
    steps = [step for propose in (*rule.steps, _longest) for step in propose(e)]
    return replace(
        section,
        bound=rule.bound if isinstance(rule.bound, str) else rule.bound(e),
        evidence=tuple(lines[name] for name in dict.fromkeys((*rule.decisive, *lines)) if name in lines),
        steps=tuple(sorted(steps, key=lambda step: step.wall_ms is None)),
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
    return _nearest({"memory bandwidth": memory, "compute": compute}, NEAR_CEILING)


def bound_by_counters(
    dram: float | None, l2: float | None, tensor: float | None, fma: float | None
) -> KernelBound | None:
    """Return what bounds a kernel with these shares of the peak of DRAM, L2, tensor and FMA pipes; None without any.

    "L2 bandwidth" is that of L2 alone. A kernel busy with other instructions, such as address arithmetic, has neither.
    """
    if all(share is None for share in (dram, l2, tensor, fma)):
        return None
    memory, cache, compute = dram or 0.0, l2 or 0.0, max(tensor or 0.0, fma or 0.0)
    moved: KernelBound = "L2 bandwidth" if memory < NEAR_PEAK else "memory bandwidth"
    return _nearest({moved: max(memory, cache), "compute": compute}, NEAR_PEAK)


def _nearest(shares: Mapping[KernelBound, float], near: float) -> KernelBound:
    """Return the resource that is nearest to its ceiling; "neither" where none is at least `near` (0 to 1)."""
    name = max(shares, key=lambda name: shares[name])
    return name if shares[name] >= near else "neither"
