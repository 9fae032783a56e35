"""The verdict on a call: what bounds it, the evidence, and the next step, from measured facts alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiling.results.record import Bound, Prediction
from profiling.trace.device_work import SHORT_US


@dataclass(frozen=True)
class Facts:
    """Measurements of one call, in milliseconds unless the name has another unit; None was not measured.

    `memory_ms` and `compute_ms` are the two terms of the roofline time. `operators` is the number of operators of an
    eager call, `traffic_ms` the time of all their reads and writes (both None where a compiler fused them). `kernels`,
    `launches` and `waits` are counts per call. `busy_ms` is the time in which the GPU worked, `short_ms` the part of it
    in which only short kernels ran, `transfer_ms` the time of copies between host and device. `launch_us`, `gap_us` and
    `replay_us` are measured costs of this device. `dtype` is that of matrix products; with `tf32`, float32 products run
    in TF32. `disturbed` is true if the ceilings were measured while other processes ran.
    """

    device: Literal["cuda", "cpu"]
    wall_ms: float
    memory_ms: float
    compute_ms: float
    launch_us: float
    operators: int | None = None
    traffic_ms: float | None = None
    kernels: float | None = None
    launches: float | None = None
    busy_ms: float | None = None
    median_us: float | None = None
    short_ms: float = 0.0
    transfer_ms: float = 0.0
    waits: float = 0.0
    gap_us: float | None = None
    replay_us: float | None = None
    dtype: str = "float32"
    tf32: bool = False
    disturbed: bool = False

    def share(self, part_ms: float | None) -> float:
        """Return `part_ms` as a share of the wall time (0 to 1); 0 where it was not measured."""
        return 0.0 if part_ms is None else part_ms / self.wall_ms

    @property
    def idle_share(self) -> float | None:
        """The share of the wall time (0 to 1) in which the GPU was idle."""
        return None if self.busy_ms is None else max(0.0, 1 - self.share(self.busy_ms))

    @property
    def fusable_share(self) -> float:
        """The share of the wall time that fusing operators can save: their traffic beyond the bytes that must move."""
        return max(0.0, self.share(self.traffic_ms) - self.share(self.memory_ms))

    @property
    def fused(self) -> bool:
        """Whether a compiler replaced the module's operators."""
        return self.traffic_ms is None

    @property
    def captured(self) -> bool:
        """Whether CUDA graphs are replayed, so that one launch by the host starts several kernels."""
        return bool(self.launches) and (self.kernels or 0.0) > 2 * (self.launches or 0.0)

    @property
    def capturing_variant(self) -> str:
        """The variant that captures this step unchanged."""
        return "compile_cuda_graph" if self.fused else "cuda_graph"

    @property
    def replay_ms(self) -> float | None:
        """The predicted time of a replay of the same kernels: their busy time, a gap for each, one launch."""
        if self.busy_ms is None or self.kernels is None or self.gap_us is None or self.replay_us is None:
            return None
        return self.busy_ms + (self.kernels * self.gap_us + self.replay_us) / 1e3

    @property
    def roofline_term(self) -> tuple[Bound, float]:
        """The larger term of the roofline time, as (its bound, its share of the wall time)."""
        memory, compute = self.share(self.memory_ms), self.share(self.compute_ms)
        return ("compute", compute) if compute > memory else ("memory bandwidth", memory)


#: Idle share from which the gaps between kernels are what bounds the call.
IDLE_SHARE = 0.25
TRANSFER_SHARE = 0.25
#: Share of the wall time from which a roofline term explains it. Operators on a CPU stay further below its ceilings.
NEAR = {"cuda": 0.5, "cpu": 0.3}
#: Share of the wall time from which the ceiling must be wrong: no call can be that much faster than its roofline.
BEYOND = 1.1
#: Share of the wall time from which the largest part is named as the bound although no ceiling is near.
MOST = 0.25
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


@dataclass(frozen=True)
class Verdict:
    """The bound of a call, the evidence for it, and the next step.

    `next_step` fits into a table column (about 24 characters). `advice` is a sentence, "reason: what to do". `evidence`
    lists observations, the decisive ones first. `prediction` is the wall time in ms that the next step should reach.
    """

    bound: Bound
    next_step: str
    advice: str
    evidence: tuple[str, ...]
    prediction: Prediction | None = None


def judge(facts: Facts) -> Verdict | None:
    """Return the verdict on a call; None on a GPU whose work was not profiled, unless a ceiling explains the time."""
    idle = facts.idle_share
    if facts.share(facts.transfer_ms) >= TRANSFER_SHARE:
        advice = "Keep the data on the GPU, or copy it from pinned memory with non_blocking=True."
        return _verdict(facts, "transfers", "keep data on the GPU", advice, ("transfers",))
    if idle is not None and idle >= IDLE_SHARE:
        return _judge_idle(facts, idle)
    if facts.device == "cuda" and idle is None and facts.roofline_term[1] < NEAR["cuda"]:
        return None
    return _judge_busy(facts)


def _judge_idle(facts: Facts, idle: float) -> Verdict:
    """Judge a GPU that is idle for a large part of the wall time."""
    if facts.waits and (facts.kernels or 0.0) / facts.waits < KERNELS_A_WAIT:
        advice = f"The host waits for the GPU {_times(facts.waits)} a call: remove .item(), .cpu() and bool(tensor)."
        return _verdict(facts, "host", "remove .item(), .cpu()", advice, ("waits", "idle"))
    return _judge_replays(facts, idle) if facts.captured else _judge_launches(facts, idle)


def _judge_launches(facts: Facts, idle: float) -> Verdict:
    """Judge gaps between kernels that the host launches one at a time."""
    launches, predicted = facts.launches or 0.0, facts.replay_ms
    if predicted is not None and not _worth_capturing(facts):
        advice = "A call does too little work for this GPU: process several inputs a call."
        return _verdict(facts, "underfilled GPU", "batch calls", advice, ("idle", "launches"))
    variant = facts.capturing_variant
    bound: Bound = "launch overhead"
    advice, decisive = (
        f"{idle:.0%} of wall time are gaps between launches: capture the step ({variant}).",
        ("idle", "launches"),
    )
    if launches and facts.wall_ms * 1e3 / launches > HOST_FACTOR * facts.launch_us:
        advice = f"The host is busy between launches: capture the step ({variant}) if that work is the same every call."
        bound, decisive = "host", ("launches", "idle")
    prediction = None if predicted is None else Prediction(variant=variant, wall_ms=predicted)
    return _verdict(facts, bound, variant, advice, decisive, prediction)


def _judge_replays(facts: Facts, idle: float) -> Verdict:
    """Judge replays that leave the GPU idle, inside them or between them."""
    replay_ms = facts.replay_ms
    if replay_ms is not None and facts.share(replay_ms) < REPLAY_EXPLAINS:
        advice = (
            f"The replays take {replay_ms:.3g} of {facts.wall_ms:.3g} ms: move the host's other work out of the step, "
            "or into the graph."
        )
        return _verdict(facts, "host", "move host work out", advice, ("idle", "launches"))
    next_step, advice = _fewer_kernels(facts)
    advice = f"{idle:.0%} of wall time are gaps between kernels of a replay and around it: {advice}"
    return _verdict(facts, "underfilled GPU", next_step, advice, ("idle", "kernels"))


def _judge_busy(facts: Facts) -> Verdict:
    """Judge a CPU, or a GPU that is busy most of the wall time."""
    term, near = facts.roofline_term
    idle, fusable, short = facts.idle_share or 0.0, facts.fusable_share, facts.share(facts.short_ms)
    ceilings = ("ceilings",)
    if near > BEYOND:
        advice = (
            "The call is faster than its roofline time, so the ceilings are too low (other programs ran while they "
            "were measured, or its kernels are faster than the measured ones): measure them again on an idle machine."
        )
        return _verdict(facts, term, "measure ceilings again", advice, ceilings)
    if near >= NEAR[facts.device]:
        return _near_ceiling(facts, term, near)
    if idle >= max(near, fusable, short, GAPS) and _worth_capturing(facts):
        return _judge_launches(facts, idle)
    if (facts.kernels or 0) >= CHAIN and short > max(near, fusable, MOST):
        next_step, advice = _fewer_kernels(facts)
        return _verdict(
            facts, _far_below(facts), next_step, f"Most of the time is in short kernels: {advice}", ("kernels",)
        )
    compiler = "compile_cuda_graph" if facts.captured else "compile"
    if fusable > max(near, MOST if facts.device == "cuda" else NEAR["cuda"]):
        advice = f"Each operator reads and writes its own tensors: fuse operators ({compiler})."
        return _verdict(facts, "memory bandwidth", compiler, advice, ("traffic",))
    if facts.device == "cpu":
        if facts.fused:
            advice = (
                "Fused operators run far below the ceilings: process several inputs a call "
                "(trace=true names the slow operators)."
            )
            return _verdict(facts, "host", "batch calls", advice, ceilings)
        advice = "Operators run far below the ceilings: fuse operators (compile), or process several inputs a call."
        return _verdict(facts, "host", "compile", advice, ceilings)
    others = "try other kernels (compile_max_autotune, another memory layout; trace=true names the slow ones)"
    next_step, advice = "compile_max_autotune", f"The roofline time is {near:.0%} of wall time: {others}."
    if fusable > max(near, WORTH):
        next_step = compiler
        advice = (
            f"The roofline time is {near:.0%} of wall time, traffic that fusion would avoid {fusable:.0%}: fuse "
            f"operators ({compiler}), or {others}."
        )
    if near < MOST:
        return _verdict(facts, _far_below(facts), next_step, advice, ceilings)
    return _verdict(facts, term, next_step, f"{advice[:-1]}, or {_narrower(facts, term)[1]}.", ceilings)


def _near_ceiling(facts: Facts, term: Bound, near: float) -> Verdict:
    step, narrower = _narrower(facts, term)
    alternative = "spend fewer FLOPs" if term == "compute" else "process several inputs a call, reading weights once"
    advice = f"The roofline time is {near:.0%} of wall time: {narrower}, or {alternative}."
    return _verdict(facts, term, step, advice, ("ceilings",))


def _far_below(facts: Facts) -> Bound:
    """Return the bound of a busy GPU far below both ceilings: short kernels (underfilled GPU) or slow ones."""
    return "underfilled GPU" if facts.busy_ms and facts.short_ms > facts.busy_ms / 2 else "slow kernels"


def _worth_capturing(facts: Facts) -> bool:
    return not facts.captured and facts.replay_ms is not None and facts.replay_ms <= (1 - WORTH) * facts.wall_ms


def _fewer_kernels(facts: Facts) -> tuple[str, str]:
    """Return (next step, advice) towards fewer and longer kernels."""
    if facts.fused:
        return (
            "batch calls",
            "process several inputs a call, or write larger kernels (trace=true names the short ones).",
        )
    return (
        "compile_cuda_graph",
        "fuse kernels and capture the step (compile_cuda_graph), or process several inputs a call.",
    )


def _narrower(facts: Facts, term: Bound) -> tuple[str, str]:
    """Return (next step, advice) towards a narrower dtype than the one in use."""
    if facts.dtype != "float32":
        return "8-bit weights", "compute in 8 bits"
    tensor_cores = facts.device == "cuda" and term == "compute" and not facts.tf32
    return "bfloat16", "compute in bfloat16" + (" or TF32 (tf32=true)" if tensor_cores else "")


def evidence(facts: Facts) -> dict[str, str]:
    """Return {name of an observation: one line}; observations that were not measured are absent."""
    memory, compute = facts.share(facts.memory_ms), facts.share(facts.compute_ms)
    disturbed = ", measured while other processes ran," if facts.disturbed and facts.device == "cpu" else ""
    lines = {
        "ceilings": f"at the ceilings{disturbed} its bytes take {memory:.0%} of wall time, its FLOPs {compute:.0%}"
    }
    if facts.traffic_ms is not None:
        lines["traffic"] = f"reads and writes of single operators take {facts.share(facts.traffic_ms):.0%} of wall time"
    if facts.idle_share is not None:
        lines["idle"] = f"GPU idle {facts.idle_share:.0%}"
    if facts.kernels is not None and facts.median_us is not None:
        short = f"kernels of at most {SHORT_US:.0f} µs take {facts.share(facts.short_ms):.0%} of wall time"
        lines["kernels"] = f"{facts.kernels:.0f} kernels, median {facts.median_us:.3g} µs; {short}"
    if facts.launches is not None:
        share = facts.share(facts.launches * facts.launch_us / 1e3)
        lines["launches"] = f"{facts.launches:.0f} launches at {facts.launch_us:.3g} µs take {share:.0%} of wall time"
    if facts.waits:
        lines["waits"] = f"the host waits for the GPU {_times(facts.waits)}"
    if facts.transfer_ms:
        lines["transfers"] = f"transfers take {facts.share(facts.transfer_ms):.0%} of wall time"
    if facts.device == "cpu" and facts.operators is not None:
        dispatch = facts.share(facts.operators * facts.launch_us / 1e3)
        lines["operators"] = f"dispatching {facts.operators} operators takes {dispatch:.0%} of wall time"
    return lines


def _times(number: float) -> str:
    return f"{number:.3g} time{'' if number == 1 else 's'}"


def _verdict(
    facts: Facts,
    bound: Bound,
    next_step: str,
    advice: str,
    decisive: tuple[str, ...],
    prediction: Prediction | None = None,
) -> Verdict:
    lines = evidence(facts)
    first = [lines[name] for name in decisive if name in lines]
    rest = [line for name, line in lines.items() if name not in decisive]
    return Verdict(bound, next_step, advice, (*first, *rest), prediction)
