"""The verdict on a call, from hand-made facts: each bound, its evidence and its next step."""

import random
import typing
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct
from planted_networks import ceilings_of

from profiling.results.record import FindingKind, Kernel, KernelFinding
from profiling.roofline.evidence import Facts, evidence
from profiling.roofline.verdict import judge

#: A GPU that works through one long kernel, at a third of both ceilings.
LONG = Facts(
    device="cuda",
    wall_ms=10.0,
    memory_ms=3.0,
    compute_ms=3.0,
    operators=1,
    launch_us=5.0,
    kernels=1,
    launches=1,
    busy_ms=9.9,
    median_us=9900.0,
    gap_us=1.0,
    replay_us=20.0,
)
LAUNCHES = replace(
    LONG,
    memory_ms=0.5,
    compute_ms=0.2,
    kernels=1000,
    launches=1000,
    busy_ms=1.5,
    median_us=1.5,
    operators=1000,
    traffic_ms=0.6,
)
HOST = Facts(device="cpu", wall_ms=10.0, memory_ms=0.1, compute_ms=0.2, operators=1000, launch_us=0.5, traffic_ms=0.3)


def judged(facts):
    verdict = judge(facts)
    assert verdict is not None
    return verdict


def test_launches():
    verdict = judged(LAUNCHES)
    assert verdict.bound == "launch overhead"
    assert verdict.next_step == verdict.prediction.variant == "cuda_graph"
    assert verdict.prediction.wall_ms == pytest.approx(1.5 + 1.0 + 0.02), "kernels, gaps between nodes, one replay"
    assert verdict.advice == "85% of wall time are gaps between launches: capture the step (cuda_graph)."
    first = ("GPU idle 85%", "1000 launches at 5 µs take 50% of wall time")
    assert verdict.evidence[:2] == first, "what decided comes first"
    unknown = judged(replace(LAUNCHES, gap_us=None))
    assert (unknown.bound, unknown.next_step, unknown.prediction) == ("launch overhead", "cuda_graph", None)


def test_gaps_that_are_the_largest_part():
    """The same decoder compiled: 16% idle, which is more than a ceiling, or short kernels, explain."""
    decoder = replace(
        LAUNCHES, wall_ms=8.62, busy_ms=7.23, kernels=330, launches=330, median_us=3.8, short_ms=0.35, gap_us=0.23
    )
    verdict = judged(replace(decoder, compute_ms=0.82, traffic_ms=None, operators=None))
    assert verdict.bound == "launch overhead"
    assert verdict.next_step == "compile_cuda_graph"
    assert verdict.prediction.wall_ms == pytest.approx(7.33, abs=0.01)
    assert verdict.advice.startswith("16% of wall time are gaps")
    nearer = judged(replace(decoder, compute_ms=2.0, traffic_ms=None, operators=None))
    assert "The roofline time is 23% of wall time" in nearer.advice
    busy = judged(replace(decoder, busy_ms=8.0, compute_ms=0.2, traffic_ms=None, operators=None))
    assert "The roofline time is 6% of wall time" in busy.advice, "an idle share of 7% is no bound"
    waits = judged(replace(decoder, waits=30.0, compute_ms=0.82, traffic_ms=None, operators=None))
    assert waits.bound == "launch overhead", "a GPU that works for most of the time is not held up by waits"
    replayed = judged(replace(decoder, launches=1, compute_ms=0.82, traffic_ms=None, operators=None))
    assert replayed.prediction is None


def test_a_compiled_step_predicts_its_own_capture():
    """What it launches are fused kernels, and a capture of the eager ones says nothing of them."""
    for kernels, bound in ((1000, "launch overhead"), (50, "host")):
        verdict = judged(replace(LAUNCHES, traffic_ms=None, operators=None, kernels=kernels, launches=kernels))
        assert verdict.bound == bound
        assert verdict.next_step == verdict.prediction.variant == "compile_cuda_graph"


def test_a_captured_step_with_a_slow_host():
    """303 kernels in 5 launches: the replays take 1.355 of 6.4 ms, so the slow part is outside of them."""
    facts = replace(
        LAUNCHES, wall_ms=6.4, busy_ms=1.319, kernels=303, launches=5, median_us=3.5, gap_us=0.084, replay_us=10.5
    )
    assert facts.replay_ms == pytest.approx(1.355, abs=1e-3)
    verdict = judged(facts)
    assert verdict.bound == "host"
    assert "The replays take 1.35 of 6.4 ms" in verdict.advice
    assert verdict.prediction is None, "it is captured already"
    assert judged(replace(facts, wall_ms=1.9)).bound == "underfilled GPU", "the replays explain 71% of it"


def test_short_kernels_underfill_a_gpu_and_long_ones_are_slow():
    short = replace(LAUNCHES, busy_ms=9.0, median_us=3.0, short_ms=8.0)
    assert judged(short).bound == "underfilled GPU"
    assert judged(short).reason == "Many kernels are short"
    assert judged(short).evidence[0] == "1000 kernels, median 3 µs; kernels of at most 5 µs take 80% of wall time"
    assert judged(replace(short, short_ms=4.4)).bound == "slow kernels", (
        "short ones take less than half of the busy time"
    )
    assert "short" not in judged(replace(short, short_ms=0.3)).reason, "the time is in long ones"
    assert "short" not in judged(replace(short, kernels=10)).reason, "ten are not many"
    nowhere = judged(replace(LONG, memory_ms=0.1, compute_ms=0.2))
    assert (nowhere.bound, nowhere.next_step) == ("slow kernels", "trace=true")
    assert "The roofline time is 2% of wall time" in nowhere.advice
    replayed = judged(replace(LAUNCHES, launches=1, busy_ms=6.0, traffic_ms=1.0))
    assert replayed.bound == "underfilled GPU"
    assert replayed.prediction is None
    assert "40% of wall time are gaps between kernels of a replay and around it" in replayed.advice
    assert judged(replace(LAUNCHES, launches=1, gap_us=None)).bound == "underfilled GPU", "gaps that were not measured"
    assert replayed.next_step == "compile_cuda_graph"
    fused = judged(replace(LAUNCHES, launches=1, busy_ms=6.0, traffic_ms=None))
    assert fused.next_step == "batch calls"
    assert "compile_cuda_graph" not in fused.advice, "that is how it runs"
    tiny = judged(replace(LONG, wall_ms=0.03, busy_ms=0.012, memory_ms=0.001, compute_ms=0.0))
    assert (tiny.bound, tiny.next_step) == ("underfilled GPU", "batch calls"), "a replay would take as long"


def test_memory():
    near = judged(replace(LONG, memory_ms=9.0))
    assert near.bound == "memory bandwidth"
    assert "90% of wall time" in near.advice
    between = judged(replace(LONG, memory_ms=0.1, compute_ms=3.0, traffic_ms=8.0))
    assert between.bound == "memory bandwidth"
    assert "compile" in between.advice
    # An image decoder on an H200, eager: 731 kernels, most of them short, and next to all the time is in the long ones.
    decoder = replace(LAUNCHES, wall_ms=16.2, busy_ms=14.1, kernels=731, launches=731, median_us=4.1, short_ms=0.8)
    unfused = judged(replace(decoder, memory_ms=0.1, compute_ms=0.82, traffic_ms=13.3))
    assert (unfused.bound, unfused.next_step) == ("memory bandwidth", "compile")
    assert unfused.prediction.wall_ms == pytest.approx(16.2 - 13.3 + 0.1), "without that traffic"
    assert unfused.evidence[0] == "reads and writes of single operators take 82% of wall time"
    assert near.evidence[0] == "at the ceilings its bytes take 90% of wall time, its FLOPs 30%"
    # An audio decoder, captured: as much by traffic as by short kernels, and fusing mends both.
    less = judged(replace(decoder, wall_ms=16.5, memory_ms=0.01, compute_ms=0.81, traffic_ms=3.68))
    assert less.bound == "slow kernels", "a fifth of the time is what all of that traffic takes at best"
    assert "traffic that fusion would avoid 22%: fuse operators (compile)" in less.advice
    both = replace(
        decoder, wall_ms=7.47, busy_ms=7.35, kernels=1248, launches=1, short_ms=2.24, compute_ms=0.4, memory_ms=0.0
    )
    assert judged(replace(both, traffic_ms=2.25)).bound == "memory bandwidth"
    assert judged(replace(both, traffic_ms=2.2)).bound == "slow kernels"
    step = judged(replace(both, memory_ms=2.8, traffic_ms=3.0))
    assert "fuse" not in " ".join(each.advice for each in step.steps), "nothing to fuse: that much must be read"
    nothing = judged(replace(both, traffic_ms=1.0, short_ms=1.0))
    assert "The roofline time is 5% of wall time" in nothing.advice
    captured = judged(replace(LONG, kernels=100, memory_ms=0.1, compute_ms=3.0, traffic_ms=8.0))
    assert "compile_cuda_graph" in captured.advice, "fused, and captured as it is"
    assert judged(replace(HOST, memory_ms=5.0)).bound == "memory bandwidth"


def test_compute():
    verdict = judged(replace(LONG, compute_ms=9.0))
    assert verdict.bound == "compute"
    host = judged(replace(HOST, compute_ms=5.0))
    assert host.bound == "compute"
    assert "TF32" not in host.advice, "no CPU has it"
    far = judged(replace(HOST, compute_ms=4.0, traffic_ms=9.0))
    assert far.next_step != "at its ceiling", "40% of the ceiling is not near it"
    slow = judged(replace(LONG, compute_ms=4.0))
    assert slow.bound == "compute"
    assert "The roofline time is 40% of wall time" in slow.advice


@pytest.mark.parametrize(
    ("facts", "compute", "memory"),
    [
        ({}, "compute in bfloat16 or TF32 (tf32=true)", "compute in bfloat16"),
        ({"tf32": True}, "compute in bfloat16", "compute in bfloat16"),
    ],
)
def test_a_dtype_that_is_advised_is_narrower(facts, compute, memory):
    for term, advised in (("compute_ms", compute), ("memory_ms", memory)):
        near, far = (judged(replace(LONG, **facts, **{term: part})) for part in (9.0, 4.0))
        assert near.advice.startswith(f"The roofline time is 90% of wall time: {advised}.")
        assert advised in [step.advice for step in far.steps]


def test_nothing_is_advised_that_no_variant_supports():
    """No variant here computes in 8 bits, and a memory layout is no advice for a network without convolutions."""
    for term in ("compute_ms", "memory_ms"):
        for part in (9.0, 4.0, 0.1):
            steps = judged(replace(LONG, dtype="bfloat16", weights_share=0.1, **{term: part})).steps
            words = " ".join(step.words + step.advice for step in steps)
            assert "8 bits" not in words
            assert "memory layout" not in words
    assert judged(replace(LONG, dtype="bfloat16", compute_ms=9.0)).next_step == "at its ceiling"
    assert judged(replace(LONG, dtype="bfloat16", memory_ms=9.0)).next_step == "batch calls", "weights are all it reads"
    unable = judged(replace(LONG, memory_ms=0.1, compute_ms=3.0, traffic_ms=8.0, compiles=False))
    assert "compile" not in " ".join(step.words for step in unable.steps), "no triton"


#: 1 TB/s and 100 TFLOP/s.
CEILINGS = replace_struct(ceilings_of(1e12), matmul_flops_per_s=1e14, launch_us=1.0)


def test_one_slow_reduction_is_named_with_its_share_rate_and_grid():
    reduction = KernelFinding(
        **{
            "kind": "reduction",
            "what": "reductions (group norm)",
            "ms": 5.6,
            "saves_ms": 5.2,
            "share": 0.58,
            "count": 6.0,
        },
        **{"gbps": 70.0, "of_ceiling": 0.07, "blocks": 32.0},
    )
    facts = replace(LAUNCHES, launches=1, busy_ms=9.6, memory_ms=0.1, traffic_ms=None, ceilings=CEILINGS, traced=True)
    verdict = judged(replace(facts, findings=(reduction,), multiprocessors=132))
    assert verdict.bound == "slow kernels"
    assert verdict.evidence[0] == (
        "reductions (group norm) take 56% at 70 GB/s, 7% of the ceiling, 32 blocks on 132 multiprocessors"
    )
    assert verdict.steps[0].words == "reductions (group norm)"
    assert verdict.steps[0].wall_ms == pytest.approx(10 - 5.2)
    assert verdict.steps[0].advice == (
        "reductions (group norm): split the work over more blocks, which leave most of the GPU idle now "
        "(at best 0.4 of 5.6 ms)"
    )
    filled = judged(replace(facts, findings=(reduction,), multiprocessors=30)).steps[0].advice
    assert filled == "reductions (group norm): use faster kernels (at best 0.4 of 5.6 ms)", "no cure is known"


def test_kernels_that_run_side_by_side_take_no_more_than_the_call():
    """Two kernels of 6 ms each, side by side in a call of 10 ms, of which the GPU works 6."""
    kernels = tuple(Kernel(kind="conv", name=name, ms=6.0, share=0.5, count=3.0, mean_us=2e3) for name in "ab")
    found = tuple(KernelFinding(kind="convolution", what=f"{each.name}s", ms=6.0, saves_ms=4.0) for each in kernels)
    facts = replace(LAUNCHES, launches=1, busy_ms=6.0, memory_ms=0.1, traffic_ms=None, ceilings=CEILINGS, traced=True)
    assert evidence(replace(facts, kernels_by_time=kernels))["slowest"] == "a takes 30%; b takes 30%"
    assert evidence(replace(facts, kernels_by_time=kernels, findings=found))["slowest"] == "as take 30%; bs take 30%"
    assert evidence(replace(facts, kernels_by_time=kernels[:1]))["slowest"] == "a takes 60%"


def test_both_rates_of_a_product_are_named():
    product = KernelFinding(
        **{"kind": "few rows", "what": "products of 17 rows", "ms": 5.0, "saves_ms": 3.0, "count": 100.0},
        **{"gbps": 300.0, "tflops": 5.0, "of_ceiling": 0.3},
    )
    facts = replace(LAUNCHES, launches=1, busy_ms=9.6, memory_ms=0.1, traffic_ms=None, ceilings=CEILINGS, traced=True)
    (first, *_) = judged(replace(facts, findings=(product,))).evidence
    assert first == "products of 17 rows take 50% at 0.3 TB/s, 30% of the ceiling (5 TFLOP/s)"
    slow = replace_struct(product, gbps=1.0, tflops=0.05, of_ceiling=None)
    assert " at 1 GB/s, under 1% of the ceiling" in judged(replace(facts, findings=(slow,))).evidence[0]
    slow = replace_struct(slow, gbps=None)
    assert " at 50 GFLOP/s, under 1% of the ceiling" in judged(replace(facts, findings=(slow,))).evidence[0]


def test_kernels_stand_for_themselves_where_there_is_no_trace():
    names = ("void at::native::(anonymous namespace)::Moments<float>(int)", "sm90_xmma_gemm_bf16bf16_tilesize64x64")
    kernels = tuple(
        Kernel(name=name, kind=kind, ms=ms, share=ms / 9, count=1.0, mean_us=1e3 * ms, blocks=blocks, occupancy=0.12)
        for name, kind, ms, blocks in zip(names, ("reduction", "gemm"), (5.0, 4.0), (32.0, 999.0), strict=True)
    )
    facts = replace(LAUNCHES, launches=1, busy_ms=9.6, traffic_ms=None, ceilings=CEILINGS, multiprocessors=132)
    first = judged(replace(facts, kernels_by_time=kernels)).evidence[0]
    assert first == (
        "Moments takes 50%, 32 blocks on 132 multiprocessors, estimated occupancy 12%; "
        "sm90_xmma_gemm_bf16bf16_tilesize64x64 takes 40%, estimated occupancy 12%"
    )
    unknown = tuple(replace_struct(kernel, occupancy=0.0) for kernel in kernels)
    assert "occupancy" not in judged(replace(facts, kernels_by_time=unknown)).evidence[0]
    tuned = judged(replace(facts, kernels_by_time=kernels[1:], traced=True))
    assert tuned.next_step == "compile_max_autotune", "products take most of the time"
    few = judged(replace(facts, kernels_by_time=kernels, underfilled_ms=6.0))
    assert few.bound == "underfilled GPU", "short kernels of fewer blocks than multiprocessors"


def operator(name, share, *, mean_us=1000.0, gbps=None, tflops=None):
    return Kernel(name=name, kind="operator", ms=share * 10, share=share, mean_us=mean_us, gbps=gbps, tflops=tflops)


@pytest.mark.parametrize(
    ("operators", "bound"),
    [
        ([operator("aten::mul", 0.9, gbps=800.0)], "memory bandwidth"),
        ([operator("aten::addmm", 0.9, gbps=100.0, tflops=60.0)], "compute"),
        ([operator("aten::add", 0.4, mean_us=2.0, gbps=1.0)], "host"),
        ([operator("aten::mkldnn_convolution", 0.9, gbps=10.0, tflops=2.0)], "slow operators"),
        ([operator("aten::sort", 0.95)], "slow operators"),
    ],
)
def test_operators_of_a_cpu_decide_what_bounds_it(operators, bound):
    verdict = judged(replace(HOST, kernels_by_time=tuple(operators), ceilings=CEILINGS))
    assert verdict.bound == bound
    if bound == "host":
        share = "Python and operators that take little more than their dispatch take 100% of wall time"
        assert verdict.evidence[0] == share, "what decided it, and not the dispatch alone"
    else:
        assert verdict.evidence[0].startswith(f"{operators[0].name} takes {operators[0].share:.0%}")


def test_transfers_and_waits():
    assert judged(replace(LONG, transfer_ms=4.0)).bound == "transfers"
    waiting = judged(replace(LAUNCHES, waits=100.0))
    assert waiting.bound == "host"
    assert "100 times" in waiting.advice
    assert waiting.evidence[:2] == ("the host waits for the GPU 100 times", "GPU idle 85%")
    assert judged(replace(LAUNCHES, waits=1.0)).bound == "launch overhead", "one wait in a thousand kernels is none"


def test_a_call_faster_than_its_roofline_time_doubts_the_ceilings():
    beaten = judged(replace(LONG, compute_ms=22.4))
    assert "the ceilings are too low" in beaten.advice
    assert beaten.next_step == "measure ceilings again"
    assert judged(replace(LONG, compute_ms=10.5)).next_step == "bfloat16", "a few per cent are noise"


def test_host():
    eager = judged(replace(HOST, operators=10_000))
    assert eager.bound == "host", "of an older record, which has no operators by name"
    assert "dispatch fewer operators (compile)" in eager.advice
    assert "dispatching 10000 operators takes 50% of wall time" in eager.evidence
    assert judged(replace(HOST, operators=10_000, compiles=False)).advice is None, "no C++ compiler"
    compiled = judged(replace(HOST, operators=None, traffic_ms=None))
    assert compiled.bound == "slow operators"
    assert compiled.steps == ()
    assert not any("operators" in line or "dispatch" in line for line in compiled.evidence), "the eager call's"
    slow_host = replace(LAUNCHES, kernels=50, launches=50)
    assert judged(slow_host).bound == "host", "200 µs a launch where one takes 5"
    assert judged(slow_host).evidence[:2] == ("50 launches at 5 µs take 2% of wall time", "GPU idle 85%")
    measurable = judged(replace(slow_host, gap_us=1.0, replay_us=10.0))
    assert measurable.next_step == measurable.prediction.variant == "cuda_graph"


def test_ceilings_that_were_disturbed_are_named_as_such():
    busy = replace(HOST, compute_ms=9.0, disturbed=True)
    assert judged(busy).evidence[0].startswith("at the ceilings, measured while other processes ran, its bytes")
    assert (
        judged(replace(busy, disturbed=False)).evidence[0].startswith("at the ceilings its bytes take 1% of wall time")
    )
    on_a_gpu = judged(replace(LONG, disturbed=True))
    assert not any("other processes" in line for line in on_a_gpu.evidence), (
        "its own ceilings do not depend on the host"
    )


def test_a_gpu_that_was_not_profiled_is_not_judged():
    unseen = Facts(device="cuda", wall_ms=10.0, memory_ms=1.0, compute_ms=1.0, operators=9, launch_us=5.0)
    assert judge(unseen) is None
    assert judged(replace(unseen, compute_ms=8.0)).bound == "compute"


KINDS = typing.get_args(FindingKind)


def random_facts(draw):
    wall_ms = 10 ** draw.uniform(-2, 3)
    share = lambda most=1.0: wall_ms * draw.choice((0.0, draw.uniform(0, most)))  # noqa: E731
    kernels = draw.choice((0, 1, 5, 30, 1000))
    device = draw.choice(("cuda", "cpu"))
    findings = tuple(
        KernelFinding(
            **{"kind": kind, "what": f"{kind}s", "ms": ms, "saves_ms": draw.uniform(0, ms), "count": 3.0},
            **{"gbps": draw.choice((None, 70.0)), "tflops": draw.choice((None, 3.0))},
            blocks=draw.choice((None, 12.0, 9999.0)),
        )
        for kind in draw.sample(KINDS, draw.randint(0, 3))
        if (ms := share(0.5))
    )
    fused = draw.random() < 0.5
    return Facts(
        device=device,
        **{"wall_ms": wall_ms, "memory_ms": share(1.2), "compute_ms": share(1.2), "launch_us": 5.0},
        operators=None if fused else draw.randint(1, 5000),
        traffic_ms=None if fused else share(1.2),
        kernels=float(kernels) if device == "cuda" else None,
        launches=float(draw.choice((1, kernels))) if device == "cuda" else None,
        busy_ms=share() if device == "cuda" else None,
        **{"median_us": draw.uniform(1, 1e3), "short_ms": share(), "transfer_ms": share(0.3)},
        **{"waits": draw.choice((0.0, 1.0, 50.0)), "gap_us": draw.choice((None, 1.0)), "replay_us": 10.0},
        dtype=draw.choice(("float32", "bfloat16")),
        underfilled_ms=draw.choice((None, share())),
        kernels_by_time=tuple(
            Kernel(
                name=f"k{i}", kind=draw.choice(("gemm", "pointwise", "operator")), ms=ms, share=ms / wall_ms, count=1.0
            )
            for i in range(draw.randint(0, 4))
            if (ms := share(0.5))
        ),
        **{"findings": findings, "traced": bool(findings), "compiles": fused or draw.random() < 0.7},
        **{"ceilings": draw.choice((None, CEILINGS)), "multiprocessors": 132 if device == "cuda" else None},
        weights_share=draw.random(),
    )


def test_no_step_of_made_up_facts_is_one_that_cannot_run_or_help():
    draw, steps = random.Random(0), 0
    for _ in range(5000):
        facts = random_facts(draw)
        verdict = judge(facts)
        for step in verdict.steps if verdict is not None else ():
            steps += 1
            text = f"{step.words} {step.advice} {step.variant}"
            assert facts.compiles or "compile" not in text, "torch.compile cannot run here"
            assert facts.device == "cuda" or "cuda" not in text
            assert facts.device == "cuda" or "trace=true" not in text
            assert not (facts.traced and "trace=true" in text), "it was traced"
            assert not (facts.captured and step.variant == "cuda_graph"), "it is captured"
            assert not (facts.fused and "fuse operators" in text), "a compiler fused them"
            assert step.wall_ms is None or step.wall_ms <= facts.wall_ms * (1 + 1e-9), "a prediction is no slowdown"
            assert step.wall_ms is None or step.wall_ms >= 0
    assert steps > 3000
