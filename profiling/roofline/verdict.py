"""The verdict on a call: what bounds it, the evidence, and the next step, from measured facts alone."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.results.record import Bound, KernelFinding, NextStep, Prediction
from profiling.roofline.evidence import BEYOND, MOST, Facts, evidence, explained, few_blocks, times

#: Idle share from which the gaps between kernels are what bounds the call.
IDLE_SHARE = 0.25
TRANSFER_SHARE = 0.25
#: Share of the wall time from which a roofline term explains it.
NEAR_ROOFLINE = 0.5
#: Least share of a CPU call that operators near one ceiling must take to explain it.
LEAST_CPU_SHARE = 0.3
#: Idle share from which gaps are named as the bound if they are the largest part.
GAPS = 0.15
#: Number of short kernels from which a call counts as a chain of short kernels.
CHAIN = 20
#: Fewest kernels between two waits of the host (`.item()`, a copy) with which it can launch ahead of the GPU.
KERNELS_A_WAIT = 32
#: Wall time per launch, as a multiple of the launch cost, from which the host must be busy with something else.
HOST_FACTOR = 20.0
#: Least predicted saving, as a share of the wall time, for which a next step is proposed.
WORTH = 0.05
#: Share of the wall time that replays take; below it the host's other work is the bound.
REPLAY_EXPLAINS = 0.5
#: Share of the kernels' time from which products and convolutions are what a compiler can tune, and share of the bytes
#: from which calls of several inputs save most of them: weights are read once.
TUNABLE, WEIGHTS = 0.5, 0.5

_BATCH = "process several inputs a call"
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


@dataclass(frozen=True)
class Verdict:
    """The bound of a call, the reason for it, the evidence, and what to try, the best step first.

    `evidence` lists observations, the decisive ones first. There is no step where nothing is known that could help.
    """

    bound: Bound
    reason: str
    evidence: tuple[str, ...]
    steps: tuple[NextStep, ...] = ()

    @property
    def next_step(self) -> str | None:
        """The first step in a few words."""
        return self.steps[0].words if self.steps else None

    @property
    def advice(self) -> str | None:
        """The first step as a sentence, "reason: what to do."."""
        return f"{self.reason}: {self.steps[0].advice}." if self.steps else None

    @property
    def prediction(self) -> Prediction | None:
        """The wall time that the variant of the first step should reach."""
        first = self.steps[0] if self.steps else None
        if first is None or first.variant is None or first.wall_ms is None:
            return None
        return Prediction(variant=first.variant, wall_ms=first.wall_ms)


def judge(facts: Facts) -> Verdict | None:
    """Return the verdict on a call; None on a GPU whose work was not profiled, unless a ceiling explains the time."""
    idle = facts.idle_share
    term, near = facts.roofline_term
    if facts.share(facts.transfer_ms) >= TRANSFER_SHARE:
        step = NextStep(
            words="keep data on the GPU",
            advice="keep the data on the GPU, or copy it from pinned memory with non_blocking=True",
        )
        return _verdict(facts, "transfers", "Copies between host and device take the time", (step,), "transfers")
    if idle is not None and idle >= IDLE_SHARE:
        return _judge_idle(facts, idle)
    if facts.device == "cuda" and idle is None and near < NEAR_ROOFLINE:
        return None
    if near > BEYOND:
        reason = (
            "The call is faster than its roofline time, so the ceilings are too low (other programs ran while they "
            "were measured, or its kernels are faster than the measured ones)"
        )
        step = NextStep(words="measure ceilings again", advice="measure them again on an idle machine")
        return _verdict(facts, term, reason, (step,), "ceilings")
    if near >= NEAR_ROOFLINE:
        return _near_ceiling(facts, term, near)
    return _judge_gpu(facts) if facts.device == "cuda" else _judge_cpu(facts)


def _judge_idle(facts: Facts, idle: float) -> Verdict:
    """Judge a GPU that is idle for a large part of the wall time."""
    if facts.waits and (facts.kernels or 0.0) / facts.waits < KERNELS_A_WAIT:
        reason = f"The host waits for the GPU {times(facts.waits)} a call"
        step = NextStep(words="remove .item(), .cpu()", advice="remove .item(), .cpu() and bool(tensor)")
        return _verdict(facts, "host", reason, (step,), "waits", "idle")
    return _judge_replays(facts, idle) if facts.captured else _judge_launches(facts, idle)


def _judge_launches(facts: Facts, idle: float) -> Verdict:
    """Judge gaps between kernels that the host launches one at a time."""
    launches, predicted = facts.launches or 0.0, facts.replay_ms
    if predicted is not None and not _worth_capturing(facts):
        reason = "A call does too little work for this GPU"
        return _verdict(facts, "underfilled GPU", reason, (_batch(),), "idle", "launches")
    variant = facts.capturing_variant
    if launches and facts.wall_ms * 1e3 / launches > HOST_FACTOR * facts.launch_us:
        advice = f"capture the step ({variant}) if that work is the same every call"
        step = NextStep(words=variant, advice=advice, variant=variant, wall_ms=predicted)
        return _verdict(facts, "host", "The host is busy between launches", (step,), "launches", "idle")
    step = NextStep(words=variant, advice=f"capture the step ({variant})", variant=variant, wall_ms=predicted)
    reason = f"{idle:.0%} of wall time are gaps between launches"
    return _verdict(facts, "launch overhead", reason, (step,), "idle", "launches")


def _judge_replays(facts: Facts, idle: float) -> Verdict:
    """Judge replays that leave the GPU idle, inside them or between them."""
    replay_ms = facts.replay_ms
    if replay_ms is not None and facts.share(replay_ms) < REPLAY_EXPLAINS:
        reason = f"The replays take {replay_ms:.3g} of {facts.wall_ms:.3g} ms"
        advice = "move the host's other work out of the step, or into the graph"
        step = NextStep(words="move host work out", advice=advice, wall_ms=replay_ms)
        return _verdict(facts, "host", reason, (step,), "idle", "launches")
    reason = f"{idle:.0%} of wall time are gaps between kernels of a replay and around it"
    fuse, batch = _fewer_kernels(facts)
    return _verdict(facts, "underfilled GPU", reason, (*fuse, *batch), "idle", "kernels")


def _judge_gpu(facts: Facts) -> Verdict:
    """Judge a GPU that is busy most of the wall time."""
    term, near = facts.roofline_term
    idle, fusable, short = facts.idle_share or 0.0, facts.fusable_share, facts.share(facts.short_ms)
    if idle >= max(near, fusable, short, GAPS) and _worth_capturing(facts):
        return _judge_launches(facts, idle)
    if (facts.kernels or 0) >= CHAIN and short > max(near, fusable, MOST):
        bound = _far_below(facts)
        fuse, batch = _fewer_kernels(facts)
        steps = (*fuse, *_faster_kernels(facts), *(batch if bound == "underfilled GPU" else ()))
        decisive = ("kernels", "slowest") if bound == "underfilled GPU" else ("slowest", "kernels")
        return _verdict(facts, bound, "Many kernels are short", steps, *decisive)
    reason = f"The roofline time is {near:.0%} of wall time"
    if fusable > max(near, MOST) and facts.compiles:
        steps = (_fusing(facts), *_faster_kernels(facts))
        return _verdict(
            facts, "memory bandwidth", "Each operator reads and writes its own tensors", steps, "traffic", "slowest"
        )
    steps = _faster_kernels(facts)
    if fusable > max(near, WORTH) and facts.compiles:
        reason += f", traffic that fusion would avoid {fusable:.0%}"
        steps = (_fusing(facts), *steps)
    moving, computing, _ = explained(facts)
    if max(moving, computing) >= NEAR_ROOFLINE:  # by kernel: fused ones move more than what a call must
        between: Bound = "memory bandwidth" if moving >= computing else "compute"
        return _verdict(facts, between, reason, steps, "slowest", "ceilings")
    if near < MOST:
        return _verdict(facts, _far_below(facts), reason, steps, "slowest", "ceilings")
    return _verdict(facts, term, reason, (*_narrower(facts, term), *steps), "ceilings", "slowest")


def _judge_cpu(facts: Facts) -> Verdict:
    """Judge a call on a CPU by its operators: those near a ceiling, those that dispatching bounds, and slow ones."""
    moving, computing, host = explained(facts)
    if not facts.kernels_by_time:  # an older record, which has no table of operators
        moving, computing = facts.share(facts.traffic_ms), facts.roofline_term[1]
        host = facts.share((facts.operators or 0) * facts.launch_us / 1e3)
    bounds: tuple[tuple[Bound, float], ...] = (("memory bandwidth", moving), ("compute", computing), ("host", host))
    bound, share = max(bounds, key=lambda each: each[1])
    can_fuse = not facts.fused and facts.compiles
    if share < LEAST_CPU_SHARE:
        step = NextStep(words="compile", advice="fuse operators (compile)", variant="compile")
        reason = "Operators run far below the ceilings"
        return _verdict(facts, "slow operators", reason, (step,) if can_fuse else (), "slowest", "ceilings")
    if bound == "host":
        step = NextStep(words="compile", advice="dispatch fewer operators (compile)", variant="compile")
        reason = f"Dispatching operators and Python take {share:.0%} of the call"
        decisive = "host" if facts.kernels_by_time else "operators"
        return _verdict(facts, bound, reason, (step,) if can_fuse else (), decisive, "slowest")
    reason = f"Operators near the {'bandwidth' if bound == 'memory bandwidth' else 'FLOP ceiling'} take the time"
    steps = (_fusing(facts),) if can_fuse and bound == "memory bandwidth" and facts.fusable_share > WORTH else ()
    return _verdict(facts, bound, reason, steps, "slowest", "traffic")


def _near_ceiling(facts: Facts, term: Bound, near: float) -> Verdict:
    steps = list(_narrower(facts, term))
    if term == "memory bandwidth" and facts.weights_share >= WEIGHTS:
        steps.append(NextStep(words="batch calls", advice=f"{_BATCH}, which read the weights once"))
    if not steps:
        work = "FLOPs" if term == "compute" else "bytes"
        steps.append(NextStep(words="at its ceiling", advice=f"nothing but fewer {work} makes it much faster"))
    return _verdict(facts, term, f"The roofline time is {near:.0%} of wall time", tuple(steps), "ceilings", "slowest")


def _far_below(facts: Facts) -> Bound:
    """Return the bound of a busy GPU far below both ceilings: kernels that cannot fill it, or slow ones."""
    unfilled = max(facts.short_ms, facts.underfilled_ms or 0.0)
    return "underfilled GPU" if facts.busy_ms and unfilled > facts.busy_ms / 2 else "slow kernels"


def _worth_capturing(facts: Facts) -> bool:
    return not facts.captured and facts.replay_ms is not None and facts.replay_ms <= (1 - WORTH) * facts.wall_ms


def _batch() -> NextStep:
    return NextStep(words="batch calls", advice=_BATCH)


def _fewer_kernels(facts: Facts) -> tuple[tuple[NextStep, ...], tuple[NextStep, ...]]:
    """Return steps towards fewer kernels (none where a compiler fused them already), and towards longer ones."""
    if facts.fused or not facts.compiles:
        return (), (_batch(),)
    advice = "fuse kernels and capture the step (compile_cuda_graph)"
    fuse = NextStep(words="compile_cuda_graph", advice=advice, variant="compile_cuda_graph")
    return (fuse,), (_batch(),)


def _fusing(facts: Facts) -> NextStep:
    """Return the step that leaves out the traffic between operators, with the time that remains without it."""
    variant = "compile_cuda_graph" if facts.captured else "compile"
    least_ms = max(facts.memory_ms, facts.compute_ms)
    predicted = max(least_ms, facts.wall_ms * (1 - facts.fusable_share))
    return NextStep(words=variant, advice=f"fuse operators ({variant})", variant=variant, wall_ms=predicted)


def _faster_kernels(facts: Facts) -> tuple[NextStep, ...]:
    """Return steps towards kernels nearer to the ceilings: the finding that saves most, and tuning by the compiler."""
    steps = []
    for finding in facts.findings[:1]:
        spent, saved = facts.overlap * finding.ms, facts.overlap * finding.saves_ms
        if saved >= WORTH * facts.wall_ms:
            left = f"{spent - saved:.2g} of {spent:.2g} ms"
            advice = f"{finding.what}: {_cure(facts, finding)} (at best {left})"
            steps.append(NextStep(words=finding.what, advice=advice, wall_ms=facts.wall_ms - saved))
    tunable = sum(kernel.ms for kernel in facts.kernels_by_time if kernel.kind in ("gemm", "conv"))
    if facts.compiles and tunable > TUNABLE * facts.kernel_ms:
        advice = "tune products and convolutions (compile_max_autotune)"
        steps.append(NextStep(words="compile_max_autotune", advice=advice, variant="compile_max_autotune"))
    if not facts.traced:
        advice = "trace it (trace=true), which names the kernels far below the ceilings and what each could save"
        steps.append(NextStep(words="trace=true", advice=advice))
    return tuple(steps)


def _cure(facts: Facts, finding: KernelFinding) -> str:
    """Return what mends a finding."""
    if few_blocks(facts, finding.blocks):
        return "split the work over more blocks, which leave most of the GPU idle now"
    return _CURES.get(finding.kind, "use faster kernels")


def _narrower(facts: Facts, term: Bound) -> tuple[NextStep, ...]:
    """Return the step to a narrower dtype than float32; none to 8 bits, which change the results by design."""
    if facts.dtype != "float32" or facts.device == "cpu":
        return ()
    tensor_cores = term == "compute" and not facts.tf32
    return (
        NextStep(words="bfloat16", advice="compute in bfloat16" + (" or TF32 (tf32=true)" if tensor_cores else "")),
    )


def _verdict(facts: Facts, bound: Bound, reason: str, steps: tuple[NextStep, ...], *decisive: str) -> Verdict:
    lines = evidence(facts)
    first = [lines[name] for name in decisive if name in lines]
    rest = [line for name, line in lines.items() if name not in decisive]
    return Verdict(bound, reason, (*first, *rest), steps)
