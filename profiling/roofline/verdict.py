"""What bounds a call, with the evidence, and one piece of advice that follows from it: facts in, words out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiling.trace.device_work import SHORT_US


@dataclass(frozen=True)
class Facts:
    """Of one call, in milliseconds where the name says nothing else; None was not measured.

    `memory_ms` and `compute_ms` are the terms of the floor, `traffic_ms` the same for all that the operators of an
    eager call read and write (None where they were fused). `kernels`, `launches` and `waits` are numbers a call,
    `busy_ms` is when the GPU worked, `short_ms` when it worked at short kernels alone, `transfer_ms` copies between
    host and device. `launch_us`, `gap_us` and `replay_us` are the ceilings of the same names, `operators` the number of
    the eager call's (None where they were fused). Products are of `dtype`, and where `tf32` says so float32 is TF32.
    `disturbed` says that the ceilings were measured while others had the processor.
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
        """Return what share of the wall time `part_ms` is."""
        return 0.0 if part_ms is None else part_ms / self.wall_ms

    @property
    def idle_share(self) -> float | None:
        """The share of the wall time in which the GPU did nothing."""
        return None if self.busy_ms is None else max(0.0, 1 - self.share(self.busy_ms))

    @property
    def fusable_share(self) -> float:
        """The share of the wall time that the operators' traffic takes beyond what must cross the bus anyway."""
        return max(0.0, self.share(self.traffic_ms) - self.share(self.memory_ms))

    @property
    def fused(self) -> bool:
        """Whether a compiler made the operators into others: there is no traffic of single ones then."""
        return self.traffic_ms is None

    @property
    def captured(self) -> bool:
        """Whether graphs are replayed: one launch by the host makes many kernels."""
        return bool(self.launches) and (self.kernels or 0.0) > 2 * (self.launches or 0.0)

    @property
    def capture(self) -> str:
        """The variant that captures this step as it is."""
        return "compile_cuda_graph" if self.fused else "cuda_graph"

    @property
    def replay_ms(self) -> float | None:
        """What a captured replay of the same kernels should take: their time, what a graph adds to each, one launch."""
        if self.busy_ms is None or self.kernels is None or self.gap_us is None or self.replay_us is None:
            return None
        return self.busy_ms + (self.kernels * self.gap_us + self.replay_us) / 1e3


def evidence(facts: Facts) -> dict[str, str]:
    """Return what was found, by name."""
    memory, compute = facts.share(facts.memory_ms), facts.share(facts.compute_ms)
    ceilings = "the ceilings" + (", measured on a busy processor," if facts.disturbed and facts.device == "cpu" else "")
    said = {"ceilings": f"{ceilings} explain {memory:.0%} of wall by bytes, {compute:.0%} by FLOPs"}
    if facts.traffic_ms is not None:
        said["traffic"] = f"{facts.share(facts.traffic_ms):.0%} of wall by what each operator reads and writes"
    if facts.idle_share is not None:
        said["idle"] = f"GPU idle {facts.idle_share:.0%}"
    if facts.kernels is not None and facts.median_us is not None:
        short = f"{facts.share(facts.short_ms):.0%} of wall in those of at most {SHORT_US:.0f} µs"
        said["kernels"] = f"{facts.kernels:.0f} kernels, median {facts.median_us:.3g} µs, {short}"
    if facts.launches is not None:
        share = facts.share(facts.launches * facts.launch_us / 1e3)
        said["launches"] = f"{facts.launches:.0f} launches, {share:.0%} of wall at {facts.launch_us:.3g} µs each"
    if facts.waits:
        said["waits"] = f"{facts.waits:.3g} wait{'' if facts.waits == 1 else 's'}"
    if facts.transfer_ms:
        said["transfers"] = f"transfers {facts.share(facts.transfer_ms):.0%}"
    if facts.device == "cpu" and facts.operators is not None:
        dispatch = facts.share(facts.operators * facts.launch_us / 1e3)
        said["operators"] = f"{facts.operators} operators, dispatch {dispatch:.0%}"
    return said


Bound = Literal[
    "launch-bound", "latency-bound", "memory-bound", "compute-bound", "transfer-bound", "sync-bound", "host-bound"
]

#: A GPU that waits for a quarter of the time is what to mend first: the rest of the time cannot be bought so cheaply.
IDLE_SHARE = 0.25
TRANSFER_SHARE = 0.25
#: From here on a ceiling explains the time. Operators on a CPU come less close to its ceilings than kernels on a GPU.
NEAR = {"cuda": 0.5, "cpu": 0.3}
#: From here on it is not the time that is wrong but the ceiling.
BEYOND = 1.1
#: From here on what explains most of the time is named where no ceiling comes near.
MOST = 0.25
#: Gaps that explain most of the time are what to mend from here on, though the GPU works for the rest of it.
GAPS = 0.15
#: So many short kernels are a chain; of fewer nobody says that they are many.
CHAIN = 20
#: A wait for fewer kernels than this leaves the host no lead.
KERNELS_A_WAIT = 32
#: A host that takes this many times the cost of a launch for each is busy with other things.
HOST_FACTOR = 20.0
#: A prediction must save this share of the time to be advice.
WORTH = 0.05
#: A replay whose kernels and gaps explain less of the wall time than this waits for a host that does other things.
REPLAY_EXPLAINS = 0.5


@dataclass(frozen=True)
class Verdict:
    """`evidence` begins with what decided; `predicted_ms` is the wall time that the variant `predicts` should take."""

    bound: Bound
    evidence: tuple[str, ...]
    advice: str
    predicts: str | None = None
    predicted_ms: float | None = None


def judge(facts: Facts) -> Verdict | None:
    """Say what bounds the call; None on a GPU whose work was not seen, unless a ceiling explains the time."""
    idle = facts.idle_share
    if facts.share(facts.transfer_ms) >= TRANSFER_SHARE:
        advice = "keep what crosses the bus on the device, or copy it from pinned memory, unwaited for"
        return _verdict(facts, "transfer-bound", ("transfers",), advice)
    if idle is not None and idle >= IDLE_SHARE:
        return _starved(facts, idle)
    if facts.device == "cuda" and idle is None and _nearest(facts)[1] < NEAR["cuda"]:
        return None
    return _working(facts)


def _starved(facts: Facts, idle: float) -> Verdict:
    """Judge a GPU that waits: for answers that the host waits for too, for launches, or between short kernels."""
    kernels = facts.kernels or 0.0
    if facts.waits and kernels / facts.waits < KERNELS_A_WAIT:
        waits = f"{facts.waits:.3g} time{'' if facts.waits == 1 else 's'}"
        advice = f"the host waits for the GPU {waits} a call: drop .item(), .cpu() and bool(tensor)"
        return _verdict(facts, "sync-bound", ("waits", "idle"), advice)
    return _replayed(facts, idle) if facts.captured else _launched(facts, idle)


def _launched(facts: Facts, idle: float) -> Verdict:
    """Judge gaps between kernels that the host launches one by one."""
    launches, decisive = facts.launches or 0.0, ("idle", "launches")
    predicted = facts.replay_ms
    if predicted is not None and not _worth_capturing(facts):
        advice = "a call does too little for a GPU: do several in one, as a batch"
        return _verdict(facts, "latency-bound", decisive, advice)
    expect, predicts = ("", None) if predicted is None else (f", expect {predicted:.3g} ms", facts.capture)
    if launches and facts.wall_ms * 1e3 / launches > HOST_FACTOR * facts.launch_us:
        busy = "the host is busy between launches: if that work is the same every time, capture it"
        advice = f"{busy} ({facts.capture}){expect}"
        return _verdict(facts, "host-bound", ("launches", "idle"), advice, predicts, predicted)
    advice = f"{idle:.0%} of wall is launch gaps: capture it ({facts.capture}){expect}"
    return _verdict(facts, "launch-bound", decisive, advice, predicts, predicted)


def _replayed(facts: Facts, idle: float) -> Verdict:
    """Judge replays that leave the GPU idle: in them or around them."""
    needed = facts.replay_ms
    if needed is not None and facts.share(needed) < REPLAY_EXPLAINS:
        advice = (
            f"the host does other work around the replays, which take {needed:.3g} of {facts.wall_ms:.3g} ms: "
            "move it out of the step, or into the graph"
        )
        return _verdict(facts, "host-bound", ("idle", "launches"), advice)
    advice = f"{idle:.0%} of wall lies between kernels of a replay and around it: {_fewer(facts)}"
    return _verdict(facts, "latency-bound", ("idle", "kernels"), advice)


def _working(facts: Facts) -> Verdict:
    """Judge a device that works all the time."""
    bound, near = _nearest(facts)
    ceilings, idle = ("ceilings",), facts.idle_share or 0.0
    if near > BEYOND:
        advice = (
            "it takes less than its floor, so the ceilings are too low: other programs ran while they were measured, "
            "or its operators are quicker than the products that were"
        )
        return _verdict(facts, bound, ceilings, advice)
    if near >= NEAR[facts.device]:
        saver = "batch calls so that weights are read once for several"
        if bound == "compute-bound":
            saver = "spend fewer FLOPs"
        advice = f"{near:.0%} of wall is what the device needs at best: {_narrower(facts, bound)}, or {saver}"
        return _verdict(facts, bound, ceilings, advice)
    fusable, short = facts.fusable_share, facts.share(facts.short_ms)
    if idle >= max(near, fusable, short, GAPS) and _worth_capturing(facts):
        return _launched(facts, idle)
    if (facts.kernels or 0) >= CHAIN and short > max(near, fusable, MOST):
        return _verdict(facts, "latency-bound", ("kernels",), f"many short kernels: {_fewer(facts)}")
    fuse = f"fuse them ({'compile_cuda_graph' if facts.captured else 'compile'})"
    if fusable > max(near, MOST if facts.device == "cuda" else NEAR["cuda"]):
        advice = f"each operator reads and writes its own tensors: {fuse}"
        return _verdict(facts, "memory-bound", ("traffic",), advice)
    if facts.device == "cpu":
        advice = "operators run far below the ceilings: fuse them (compile), or batch calls"
        if facts.fused:
            advice = "fused operators run far below the ceilings: batch calls (trace=true shows where the time goes)"
        return _verdict(facts, "host-bound", ceilings, advice)
    others = "try other kernels (compile_max_autotune, another memory layout; trace=true shows which take the time)"
    advice = f"the floor is {near:.0%} of wall: {others}"
    if fusable > max(near, WORTH):
        advice = f"the floor is {near:.0%} of wall, what single operators move {fusable:.0%} more: {fuse}, or {others}"
    # Kernels that neither bytes nor FLOPs explain wait for what they asked for: Nsight Compute calls it latency too.
    if near < MOST:
        return _verdict(facts, "latency-bound", ceilings, advice)
    return _verdict(facts, bound, ceilings, f"{advice}, or {_narrower(facts, bound)}")


def _verdict(
    facts: Facts,
    bound: Bound,
    decisive: tuple[str, ...],
    advice: str,
    predicts: str | None = None,
    predicted_ms: float | None = None,
) -> Verdict:
    found = evidence(facts)
    first = [found[name] for name in decisive if name in found]
    rest = [said for name, said in found.items() if name not in decisive]
    return Verdict(bound, (*first, *rest), advice, predicts, predicted_ms)


def _worth_capturing(facts: Facts) -> bool:
    return not facts.captured and facts.replay_ms is not None and facts.replay_ms <= (1 - WORTH) * facts.wall_ms


def _fewer(facts: Facts) -> str:
    """Advise how to come by fewer kernels."""
    if facts.fused:
        return "they are fused already; batch calls, or write larger ones by hand (trace=true shows where time goes)"
    return "fuse them and capture that (compile_cuda_graph), or batch calls"


def _narrower(facts: Facts, bound: Bound) -> str:
    """Advise a dtype that is narrower than the one in use."""
    if facts.dtype != "float32":
        return "go down to 8 bits"
    tensor_cores = facts.device == "cuda" and bound == "compute-bound" and not facts.tf32
    return "compute in bfloat16" + (" or TF32 (tf32=true)" if tensor_cores else "")


def _nearest(facts: Facts) -> tuple[Bound, float]:
    """Return the term of the floor that explains more, and what share of the wall time it is."""
    memory, compute = facts.share(facts.memory_ms), facts.share(facts.compute_ms)
    return ("compute-bound", compute) if compute > memory else ("memory-bound", memory)
