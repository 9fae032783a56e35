"""The verdict on a call and on a kernel, from hand-made evidence: each bound, its observations and its next step."""

import random
import typing

import pytest
from fake_ncu import sample
from hand_made_ceilings import H200, ceilings_of
from msgspec.structs import asdict, replace

from profiling.results.explanations import DeviceWork, FindingKind, Kernel, KernelFinding, RooflinePart
from profiling.roofline.evidence import Conditions, Evidence, observations
from profiling.roofline.rules import RULES, bound_by_counters, bound_by_trace, judge
from profiling.trace.analysis import kernels_by_name
from profiling.trace.attribution import KernelAttribution
from profiling.trace.events import GpuWork
from profiling.trace.findings import kernel_findings
from profiling.trace.nsight_compute import read_launches

#: 1 TB/s and 100 TFLOP/s in the dtype of the run; rates of others.
CEILINGS = replace(ceilings_of(1e12), matmul_flops_per_s=1e14, launch_us=5.0, gap_us=1.0, replay_us=20.0)
OTHERS = {"float32": 5e13, "bfloat16": 2e14, "int8": 4e14}


def planted(*given, **changes):
    """Make a section and evidence of a call of 10 ms; a compiler fused the operators of one without `traffic_ms`."""
    facts = {"device": "cuda", "wall_ms": 10.0, "dtype": "float32", "weights": 1.0, "kernels_by_time": ()}
    for each in (*given, changes):
        facts |= each
    work = {"median_us": 1.5, "short_ms": 0.0, "transfer_ms": 0.0, "waits": 0.0}
    work |= {name: facts[name] for name in asdict(DeviceWork(**dict.fromkeys((*work, *_WORK), 0.0))) if name in facts}
    section = RooflinePart(
        memory_ms=facts["memory_ms"],
        compute_ms=facts["compute_ms"],
        traffic_bytes=None if facts.get("traffic_ms") is None else round(1e9 * facts["traffic_ms"]),
        bytes={"weights": round(100 * facts["weights"]), "total": 100},
        flops_by_dtype={facts["dtype"]: 1},
        flops={"matmul": round(100 * facts.get("linear", 1.0)), "total": 100},
        device_work=DeviceWork(**work) if "busy_ms" in facts else None,
        kernels=facts["kernels_by_time"],
        findings=facts.get("findings", ()),
    )
    fused, limits = facts.get("traffic_ms") is None, {name: facts[name] for name in _CEILINGS if name in facts}
    here = {name: facts[name] for name in ("tf32", "compiles", "multiprocessors") if name in facts}
    limits.setdefault("other_flops_per_s", {name: rate for name, rate in OTHERS.items() if name != facts["dtype"]})
    ceilings = replace(CEILINGS, **limits)
    return section, Evidence(section, facts["wall_ms"], ceilings, Conditions(facts["device"], fused, **here))


_WORK = ("kernels", "launches", "busy_ms")
_CEILINGS = ("gap_us", "replay_us", "disturbed", "other_flops_per_s", "dtype")


def judged(*given, **changes):
    return judge(*planted(*given, **changes))


def kernel(name, ms, kind="gemm", **known):
    return Kernel(name=name, kind=kind, ms=ms, share=ms / 10, count=1.0, mean_us=1e3 * ms, **known)


#: A GPU that works through one long kernel, at a third of both ceilings; and far below both.
LONG = {"memory_ms": 3.0, "compute_ms": 3.0, "kernels": 1, "launches": 1, "busy_ms": 9.9, "median_us": 9900.0}
FAR = LONG | {"memory_ms": 0.1, "compute_ms": 0.1}
#: A thousand kernels of 1.5 us, launched one by one; and captured, with a GPU that is busy.
LAUNCHES = {"memory_ms": 0.5, "compute_ms": 0.2, "traffic_ms": 0.6, "kernels": 1000, "launches": 1000, "busy_ms": 1.5}
LAUNCHES |= {"median_us": 1.5}
CAPTURED = LAUNCHES | {"launches": 1, "busy_ms": 9.6, "memory_ms": 0.1, "traffic_ms": None}
#: A captured step of 303 kernels in 5 launches, whose replays take 1.355 of 6.4 ms.
SLOW_HOST = LAUNCHES | {"wall_ms": 6.4, "busy_ms": 1.319, "kernels": 303, "launches": 5, "gap_us": 0.084}
SLOW_HOST |= {"replay_us": 10.5}
#: A compiled decoder of 330 kernels: 16% idle, which is more than a ceiling, or short kernels, explain.
GAPS = LAUNCHES | {"wall_ms": 8.62, "busy_ms": 7.23, "kernels": 330, "launches": 330, "short_ms": 0.35}
GAPS |= {"gap_us": 0.23, "compute_ms": 0.82, "traffic_ms": None}
SHORT = LAUNCHES | {"busy_ms": 9.0, "median_us": 3.0, "short_ms": 8.0, "kernels_by_time": (kernel("long", 4.0),)}
REPLAY = LAUNCHES | {"launches": 1, "busy_ms": 6.0, "traffic_ms": 1.0}
#: An image decoder on an H200, eager: 731 kernels, most of them short, and next to all the time is in the long ones.
DECODER = LAUNCHES | {"wall_ms": 16.2, "busy_ms": 14.1, "kernels": 731, "launches": 731, "short_ms": 0.8}
DECODER |= {"memory_ms": 0.1, "compute_ms": 0.82, "traffic_ms": 13.3}
#: The same captured: as much by traffic as by short kernels, and fusing mends both.
BOTH = DECODER | {"wall_ms": 7.47, "busy_ms": 7.35, "kernels": 1248, "launches": 1, "short_ms": 2.24}
BOTH |= {"compute_ms": 0.4, "memory_ms": 0.0}
FEW_BLOCKS = CAPTURED | {"kernels_by_time": (kernel("long", 5.0),), "underfilled_ms": 6.0}
TINY = {"wall_ms": 0.03, "busy_ms": 0.012, "memory_ms": 0.001, "compute_ms": 0.001}
HOST = {"device": "cpu", "memory_ms": 0.1, "compute_ms": 0.2, "traffic_ms": 0.3}


@pytest.mark.parametrize(
    ("facts", "changes", "bound", "step"),
    [
        (LAUNCHES, {}, "launch overhead", "cuda_graph"),
        (LAUNCHES, {"traffic_ms": None}, "launch overhead", "compile+cuda_graph"),
        (LAUNCHES, {"waits": 1.0}, "launch overhead", "cuda_graph"),  # one wait in a thousand kernels is none
        (LAUNCHES, {"waits": 100.0}, "host", "no .item(), .cpu()"),
        (LAUNCHES, {"kernels": 50, "launches": 50}, "host", "cuda_graph"),  # 200 µs a launch where one takes 5
        (GAPS, {}, "launch overhead", "compile+cuda_graph"),
        (GAPS, {"waits": 30.0}, "launch overhead", "compile+cuda_graph"),  # a GPU that works is not held up
        (GAPS, {"compute_ms": 2.0}, None, None),  # 23% at the FLOP ceiling
        (GAPS, {"busy_ms": 8.0}, None, None),  # an idle share of 7% is no bound
        (SLOW_HOST, {}, "host", "move host work out"),
        (SLOW_HOST, {"wall_ms": 1.9}, "underfilled GPU", "compile+cuda_graph"),  # the replays explain 71% of it
        (SHORT, {}, "underfilled GPU", "compile+cuda_graph"),
        (SHORT, {"short_ms": 4.4}, "GEMM 40%", "compile+cuda_graph"),  # less than half of the busy time
        (FEW_BLOCKS, {}, "underfilled GPU", "max_autotune"),
        (FAR, TINY, "underfilled GPU", "batch calls"),
        (REPLAY, {}, "underfilled GPU", "compile+cuda_graph"),
        (REPLAY, {"traffic_ms": None}, "underfilled GPU", "batch calls"),  # compiled and captured already
        (FAR, {}, None, None),
        (LONG, {"memory_ms": 9.0}, "memory bandwidth", "dtype=bfloat16"),
        (LONG, {"memory_ms": 9.0, "dtype": "bfloat16"}, "memory bandwidth", "batch calls"),  # it reads weights only
        (LONG, {"compute_ms": 9.0}, "compute", "dtype=bfloat16"),
        (LONG, {"compute_ms": 9.0, "dtype": "bfloat16"}, "compute", "int8"),
        (LONG, {"compute_ms": 10.5}, "compute", "dtype=bfloat16"),  # a few per cent beyond the ceiling are noise
        (LONG, {"compute_ms": 22.4}, "compute", "measure ceilings again"),
        (
            LONG | {"kernels_by_time": (kernel("a", 9.0),)},
            {"memory_ms": 3.8},
            "GEMM 90%",
            "dtype=bfloat16",
        ),  # 38%: no bound
        (LONG, {"transfer_ms": 4.0}, "transfers", "no transfers"),
        (DECODER, {}, "memory bandwidth", "compile"),
        (DECODER, {"wall_ms": 16.5, "memory_ms": 0.01, "traffic_ms": 3.68}, None, "compile"),  # a fifth of the time
        (BOTH, {"traffic_ms": 2.25}, "memory bandwidth", "compile+cuda_graph"),
        (BOTH, {"traffic_ms": 2.2}, None, "compile+cuda_graph"),
        # Fused kernels near a ceiling move more than the call must.
        (FAR, {"kernels_by_time": (kernel("a", 9.0, gbps=800.0),)}, "memory bandwidth", "GEMM"),
        (FAR, {"kernels_by_time": (kernel("b", 9.0, gbps=10.0, tflops=80.0),)}, "compute", "GEMM"),
        (HOST, {"compute_ms": 5.0}, "compute", "dtype=bfloat16"),
        (HOST, {"compute_ms": 9.0, "other_flops_per_s": {"bfloat16": 2e13}}, "compute", "FLOPs 9 of 10 ms"),
        (
            HOST,
            {"compute_ms": 9.0, "dtype": "bfloat16", "other_flops_per_s": {"float32": 5e14}},
            "compute",
            "dtype=float32",
        ),
        (HOST, {"compute_ms": 4.0, "traffic_ms": 9.0}, "host", "compile"),  # 40% of the ceiling is not near it
        ({"memory_ms": 1.0, "compute_ms": 8.0}, {}, "compute", "dtype=bfloat16"),  # a GPU that was not profiled
        ({"memory_ms": 1.0, "compute_ms": 1.0}, {}, None, None),
    ],
)
def test_bound_and_next_step(facts, changes, bound, step):
    verdict = judged(facts, changes)
    assert (verdict.bound, next((each.words for each in verdict.steps), None)) == (bound, step)


def test_what_decided_comes_first():
    for facts, first in (
        (LAUNCHES, ("GPU idle 85%", "1000 launches at 5 µs take 50% of wall time")),
        (LAUNCHES | {"waits": 100.0}, ("the host waits for the GPU 100 times a call", "GPU idle 85%")),
        (SHORT, ("1000 kernels, median 3 µs; kernels of at most 5 µs take 80% of wall time",)),
        (
            LONG | {"memory_ms": 9.0},
            ("at the ceilings the call's weights, inputs and outputs take 90% of wall time, its FLOPs 30%",),
        ),
        (DECODER, ("tensors that operators hand to each other through memory take 82% of wall time",)),
    ):
        assert judged(facts).evidence[: len(first)] == first


def test_steps_that_would_change_nothing_are_not_proposed():
    def advice(*facts, **changes):
        return " ".join(each.advice for each in judged(*facts, **changes).steps)

    assert "fuse" not in advice(BOTH, memory_ms=2.8, traffic_ms=3.0), "must be read"
    for each in (LONG | {"memory_ms": 9.0}, LONG | {"compute_ms": 9.0, "tf32": True}, HOST | {"compute_ms": 5.0}):
        assert "TF32" not in advice(each)
    assert "bfloat16 (dtype=bfloat16) or TF32 (tf32=true)" in advice(LONG, compute_ms=9.0)


SLOW = (kernel("aten::mkldnn_convolution", 9.0, "operator", gbps=10.0),)
SORT = HOST | {"kernels_by_time": (kernel("aten::sort", 9.0, "operator"),)}  # no rate is known
BUSY = HOST | {"compute_ms": 8.0}


@pytest.mark.parametrize(
    ("facts", "words", "wall_ms"),
    [
        (LAUNCHES, "cuda_graph", 1.5 + 1.0 + 0.02),  # kernels, gaps between nodes, one replay
        (LAUNCHES | {"gap_us": None}, "cuda_graph", None),
        (GAPS, "compile+cuda_graph", 7.23 + 330 * 0.00023 + 0.02),
        (GAPS | {"launches": 1}, "compile+cuda_graph", None),  # it is captured already
        (DECODER, "compile", 16.2 - 13.3 + 0.1),  # without traffic between operators
        (BUSY, "dtype=bfloat16", 6.0),  # its FLOPs take half as long
        (BUSY | {"other_flops_per_s": {"bfloat16": 1e13}}, "dtype=bfloat16", None),  # a CPU that emulates it
        (BUSY | {"other_flops_per_s": {}}, "dtype=bfloat16", None),  # not measured
        (BUSY | {"dtype": "bfloat16"}, "int8", 4.0),
        (BUSY | {"dtype": "bfloat16", "linear": 0.5}, "int8", 7.0),  # for half of the FLOPs
        (BUSY | {"dtype": "bfloat16", "linear": 0.0}, "int8", None),  # no 8-bit convolutions
        (LONG | {"memory_ms": 9.0}, "dtype=bfloat16", 5.5),  # half of the bytes
        (LONG | {"memory_ms": 9.0, "dtype": "bfloat16"}, "int8", None),  # bytes are no reason for 8 bits
        (LAUNCHES | {"compute_ms": 1.0}, "dtype=bfloat16", None),  # the host decides
        (LONG | {"transfer_ms": 4.0}, "no transfers", 6.0),
        (LAUNCHES | {"waits": 100.0}, "no .item(), .cpu()", 5.0),  # the launches
        (HOST | {"kernels_by_time": SLOW}, "convolutions", 1.0 + 9 * 0.01),  # at the ceiling, and what is outside
        (SORT, "reductions", None),
    ],
)
def test_a_prediction_comes_from_a_ceiling_or_a_measured_time(facts, words, wall_ms):
    found = [each.wall_ms for each in judged(facts).steps if each.words == words and each.wall_ms is not None]
    assert found == ([] if wall_ms is None else [pytest.approx(wall_ms, abs=0.01)])


def test_the_last_step_names_what_takes_the_time():
    for facts, words in (
        (CAPTURED | {"kernels_by_time": (kernel("a", 5.0),)}, "GEMM 5 of 10 ms"),
        (SORT, "reductions 9 of 10 ms"),
        (HOST | {"compute_ms": 9.0}, "FLOPs 9 of 10 ms"),
        (LONG | {"memory_ms": 8.0}, "bytes 8 of 10 ms"),
    ):
        assert judged(facts).steps[-1].words == words
    assert not any("10 ms" in each.words for each in judged(LONG, memory_ms=5.0).steps), "half: not at the ceiling"


def test_one_slow_reduction_is_named_with_its_share_rate_and_grid():
    times = {"ms": 5.6, "saves_ms": 5.2, "share": 0.58, "count": 6.0}
    what = {"kind": "reduction", "what": "group norm reductions"}
    reduction = KernelFinding(**times, **what, gbps=70.0, of_ceiling=0.07, blocks=32.0)
    verdict = judged(CAPTURED, findings=(reduction,), multiprocessors=132)
    assert verdict.bound == "group norm reductions 56%"
    rate = "at 70 GB/s, 7% of the bandwidth, 32 blocks on 132 multiprocessors"
    assert verdict.evidence[0] == f"56% group norm reductions {rate}"
    assert verdict.steps[0].words == "group norm reductions"
    assert verdict.steps[0].wall_ms == pytest.approx(10 - 5.2)
    saves = "(saves at most 5.2 of their 5.6 ms)"
    cure = f"launch 132 thread blocks or more, not 32 on average {saves}"
    assert verdict.steps[0].advice == f"group norm reductions: {cure}"
    filled = judged(CAPTURED, findings=(reduction,), multiprocessors=30).steps[0].advice
    assert filled == f"group norm reductions: use faster kernels {saves}", "no cure is known"


def test_kernels_of_which_nothing_is_known_are_named_beside_slow_ones():
    """Else a call that spends its time in the user's own kernels would be bound by the little that is known."""
    kernels = (kernel("mine", 4.0, "other"), kernel("indexing", 1.0, "pointwise", gbps=100.0))
    slow = KernelFinding(kind="elementwise", what="fused indexing", ms=1.0, saves_ms=0.9, gbps=100.0, of_ceiling=0.1)
    verdict = judged(CAPTURED, kernels_by_time=kernels, findings=(slow,))
    assert verdict.bound == "other kernels 40%, fused indexing 10%"
    assert verdict.steps[0].words == "fused indexing", "which is predicted to save time"


def test_slow_kernels_of_a_small_part_of_the_call_do_not_stand_for_all_of_it():
    kernels = (kernel("mine", 8.0, "conv"), kernel("indexing", 0.7, "pointwise", gbps=100.0))
    slow = KernelFinding(kind="elementwise", what="fused indexing", ms=0.7, saves_ms=0.6, gbps=100.0, of_ceiling=0.1)
    assert judged(CAPTURED, kernels_by_time=kernels, findings=(slow,)).bound == "convolutions 80%, pointwise 7%"


def test_kernels_that_run_side_by_side_take_no_more_than_the_call():
    """Two kernels of 6 ms each, side by side in a call of 10 ms, of which the GPU works 6."""
    kernels = tuple(Kernel(kind="conv", name=name, ms=6.0, share=0.5, count=3.0, mean_us=2e3) for name in "ab")
    found = tuple(KernelFinding(kind="convolution", what=f"{each.name}s", ms=6.0, saves_ms=4.0) for each in kernels)
    for facts, slowest in (
        ({"kernels_by_time": kernels}, "60% convolutions (a)"),
        ({"kernels_by_time": kernels, "findings": found}, "30% as; 30% bs"),
        ({"kernels_by_time": kernels[:1]}, "60% convolutions (a)"),
    ):
        assert observations(planted(CAPTURED, facts, busy_ms=6.0)[1])["slowest"] == slowest


def test_a_rate_is_named_in_the_unit_that_fits_it():
    for rates, words in (
        ({"gbps": 300.0, "tflops": 5.0, "of_ceiling": 0.3}, "at 0.3 TB/s, 30% of the bandwidth"),
        ({"tflops": 0.05}, "at 50 GFLOP/s, under 1% of the FLOP ceiling"),
        ({"gbps": 24.0}, "at 24 GB/s, 2% of the bandwidth"),
        ({"gbps": 3350.0}, "at 3.4 TB/s, above the measured bandwidth"),
        ({"gbps": 9.9e-5}, "at under 0.1 GB/s, under 1% of the bandwidth"),
    ):
        product = KernelFinding(kind="few rows", what="GEMM M=17", ms=5.0, saves_ms=3.0, count=100.0, **rates)
        assert judged(CAPTURED, findings=(product,)).evidence[0] == f"50% GEMM M=17 {words}"


def test_where_no_word_fits_kernels_are_named_with_their_share():
    shares = (("void ns::a<int>(long)", 4.0, "gemm"), ("b", 3.0, "conv"), ("c", 2.0, "gemm"), ("d", 0.4, "copy"))
    named = judged(FAR, kernels_by_time=tuple(kernel(*each) for each in shares))
    assert (named.bound, named.evidence[0]) == ("GEMM 60%, convolutions 30%", "60% GEMM (a); 30% convolutions (b)")
    for name, words in (
        ("void at::native::(anonymous namespace)::RowwiseMoments<float>(long, float*)", "GEMM (RowwiseMoments)"),
        ("Torch-Compiled Region: 0/0", "compiled code"),
        ("TorchDynamo Cache Lookup", "guards of torch.compile"),
    ):
        for blocks, grid in ((32.0, ", 32 blocks on 132 multiprocessors"), (999.0, "")):
            verdict = judged(CAPTURED, multiprocessors=132, kernels_by_time=(kernel(name, 5.0, blocks=blocks),))
            assert verdict.evidence[0] == f"50% {words}{grid}"
    assert verdict.steps[0].words == "max_autotune", "GEMMs take most of the time"
    own = judged(CAPTURED, kernels_by_time=(kernel("_convolution_1x1", 5.0, "conv"),))
    assert own.steps[0].words == "convolutions 5 of 10 ms", "a compiler does not tune what no operator of torch starts"


@pytest.mark.parametrize(
    ("known", "bound"),
    [
        ({"name": "aten::mul", "ms": 9.0, "gbps": 800.0}, "memory bandwidth"),
        ({"name": "aten::addmm", "ms": 9.0, "gbps": 100.0, "tflops": 60.0}, "compute"),
        ({"name": "aten::add", "ms": 4.0, "gbps": 1.0, "typical_us": 2.0}, "host"),
        ({"name": "aten::sort", "ms": 9.5}, "reductions 95%"),
    ],
)
def test_operators_of_a_cpu_decide_what_bounds_it(known, bound):
    one = kernel(**known, kind="operator")
    verdict = judged(HOST, kernels_by_time=(replace(one, mean_us=one.typical_us or one.mean_us),))
    assert verdict.bound == bound
    if bound == "host":
        share = "Python and operators that take little more than their dispatch take 100% of wall time"
        assert verdict.evidence[0] == share, "what decided it"
        assert verdict.steps[0].advice == "fuse operators (compile)"
    else:
        assert verdict.evidence[0].startswith(f"{one.share:.0%}")
        assert f"({one.name})" in verdict.evidence[0]


def test_ceilings_that_were_disturbed_are_named_as_such():
    busy = HOST | {"compute_ms": 9.0}
    disturbed = "at the ceilings, measured while other processes ran, the call's weights"
    assert any(line.startswith(disturbed) for line in judged(busy, disturbed=True).evidence)
    for undisturbed in (judged(busy), judged(LONG, disturbed=True)):  # those of a GPU do not depend on the host
        assert not any("other processes" in line for line in undisturbed.evidence)


KINDS = typing.get_args(FindingKind)


def random_facts(draw):
    wall_ms = 10 ** draw.uniform(-2, 3)
    share = lambda most=1.0: wall_ms * draw.choice((0.0, draw.uniform(0, most)))  # noqa: E731
    facts = {"wall_ms": wall_ms, "memory_ms": share(1.2), "compute_ms": share(1.2), "weights": draw.random()}
    facts |= {"dtype": draw.choice(("float32", "bfloat16")), "traffic_ms": draw.choice((None, share(1.2)))}
    facts["compiles"] = facts["traffic_ms"] is None or draw.random() < 0.7
    facts |= {"device": draw.choice(("cuda", "cpu")), "gap_us": draw.choice((None, 1.0)), "multiprocessors": 132}
    if facts["device"] == "cuda":
        kernels = draw.choice((0, 1, 5, 30, 1000))
        facts |= {"kernels": float(kernels), "launches": float(draw.choice((1, kernels))), "busy_ms": share()}
        facts |= {"short_ms": share(), "transfer_ms": share(0.3), "waits": draw.choice((0.0, 1.0, 50.0))}
        facts |= {"underfilled_ms": draw.choice((None, share()))}
    kind = draw.choice(("gemm", "pointwise")) if facts["device"] == "cuda" else "operator"
    rates = {"gbps": draw.choice((None, 70.0, 900.0)), "tflops": draw.choice((None, 3.0, 90.0))}
    times = [ms for _ in range(draw.randint(0, 4)) if (ms := share())]
    facts["kernels_by_time"] = tuple(
        Kernel(name=f"k{place}", kind=kind, ms=ms, share=ms / wall_ms, count=1.0, mean_us=1e3 * ms, **rates)
        for place, ms in enumerate(times)
    )
    if draw.random() < 0.5:
        facts["findings"] = tuple(
            KernelFinding(kind=kind, what=f"{kind}s", ms=ms, saves_ms=draw.uniform(0, ms), count=3.0, **rates)
            for kind in draw.sample(KINDS, draw.randint(0, 3))
            if (ms := share(0.5))
        )
    return facts


def test_no_step_of_made_up_evidence_is_one_that_cannot_run_or_help():
    draw, steps, decided = random.Random(0), 0, set()
    for _ in range(5000):
        section, e = planted(random_facts(draw))
        decided.add(next(place for place, rule in enumerate(RULES) if rule.when(e)))
        for each in judge(section, e).steps:
            steps += 1
            text = f"{each.words} {each.advice} {each.variant}"
            assert e.here.compiles or "compile" not in text, "torch.compile cannot run here"
            assert e.on_gpu or "cuda" not in text
            assert not (e.captured and each.variant == "cuda_graph"), "it is captured"
            assert not (e.here.fused and "fuse operators" in text), "a compiler fused them"
            assert "trace=true" not in text, "what takes the time is known"
            assert each.wall_ms is None or 0 <= each.wall_ms <= e.wall_ms * (1 + 1e-9), "a prediction is no slowdown"
    assert steps > 3000
    assert decided == set(range(len(RULES))), "each rule decides somewhere"


KERNEL_CEILINGS = ceilings_of(4e12, bandwidth=((1_000_000, 8e12), (1_000_000_000, 4e12)), matmul_flops_per_s=8e14)


def test_what_bounds_a_kernel_by_its_rates():
    for gbps, tflops, mean_us, bound in (
        (3000.0, 10.0, 1000.0, "memory bandwidth"),  # 3 GB at 75% of the bandwidth of memory
        (3000.0, None, 1.0, "neither"),  # 3 MB: 38% of the bandwidth of a cache
        (500.0, 600.0, 100.0, "compute"),
        (500.0, 100.0, 1000.0, "neither"),
        (None, 700.0, 10.0, "compute"),
        (None, None, 10.0, None),
        (3000.0, None, None, None),
    ):
        assert bound_by_trace(rated(gbps, tflops, mean_us), KERNEL_CEILINGS) == bound
        assert bound_by_trace(rated(gbps, tflops, mean_us), None) is None


def rated(gbps, tflops, mean_us):
    return Kernel(name="k", kind="gemm", ms=1.0, mean_us=mean_us, gbps=gbps, tflops=tflops)


def test_what_bounds_a_kernel_by_its_counters():
    for dram, l2, tensor, fma, bound in (
        (0.85, 0.4, 0.2, 0.0, "memory bandwidth"),
        (0.25, 0.83, 0.0, 0.2, "L2 bandwidth"),  # reads its 134 MB more than once
        (0.62, 0.73, 0.0, 0.3, "memory bandwidth"),  # all that passes DRAM passes L2
        (0.3, 0.7, 0.65, 0.0, "L2 bandwidth"),
        (0.3, 0.5, 0.9, 0.1, "compute"),
        (0.3, 0.5, 0.0, 0.7, "compute"),
        (0.59, 0.2, 0.1, 0.1, "neither"),
        (None, None, 0.9, None, "compute"),
        (None, None, None, None, None),
    ):
        assert bound_by_counters(dram, l2, tensor, fma) == bound, (dram, l2, tensor, fma)


def launches(*sizes):
    """Return launches of one kernel, given as (number, bytes, us)."""
    return [
        KernelAttribution(GpuWork("elementwise", "kernel", 0.0, us, 1, 1, None), "pointwise", bytes=size)
        for number, size, us in sizes
        for _ in range(number)
    ]


def test_a_kernel_has_one_ceiling():
    """That of the launches that take the time: for its row, its bound, and the finding on it."""
    (row,) = kernels_by_name([launches((3, 1_000_000, 0.25))])
    assert KERNEL_CEILINGS.shares(row) == (0.5, 0.0), "half of a cache's rate"
    (row,) = kernels_by_name([launches((3, 100_000_000, 100))])
    (found,) = kernel_findings([launches((3, 100_000_000, 100))], KERNEL_CEILINGS)
    assert KERNEL_CEILINGS.shares(row) == (found.of_ceiling, 0.0)
    # 20 launches of 1 MB and one of 4 GB, all at 4 TB/s: the mean has 191 MB, which a cache might pass at 8.
    (row,) = kernels_by_name([launches((20, 1_000_000, 0.25), (1, 4_000_000_000, 1000))])
    ceilings = replace(KERNEL_CEILINGS, bandwidth=((100_000_000, 8e12), (4_000_000_000, 4e12)))
    assert ceilings.shares(row)[0] == pytest.approx(1.0)
    assert bound_by_trace(row, ceilings) == "memory bandwidth"


#: Bytes of the picture of 256 channels, of 128 x 128 in bfloat16; FLOPs of its 3 x 3 convolution.
PICTURE, CONV_FLOPS = 2 * 256 * 128 * 128, 2 * 256 * 256 * 9 * 128 * 128


def test_counters_and_bytes_name_the_same_bound_on_an_h200():
    counters = {"dram": "dram__throughput", "l2": "lts__throughput"}
    metrics = {name: f"{counter}.avg.pct_of_peak_sustained_elapsed" for name, counter in counters.items()}
    metrics["tensor"] = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
    seen = read_launches(sample("eager"), {**metrics, "seconds": "gpu__time_duration.sum"})
    for row, touched, flops, bound in (
        (0, PICTURE, 0, "neither"),  # group norm reduction of 32 blocks
        (2, 2 * PICTURE, 0, "neither"),  # group norm apply, busy with addresses (SM at 59%)
        (3, 2 * PICTURE, 0, "neither"),  # SiLU of 6.6 us
        (6, 2 * PICTURE, CONV_FLOPS, "compute"),  # cuDNN implicit GEMM
        (12, 2 * PICTURE, 0, "neither"),  # sum of 512 blocks
    ):
        launch, seconds = seen[row], seen[row].seconds
        assert bound_by_counters(launch.dram, launch.l2, launch.tensor, None) == bound, row
        traced = rated(touched / seconds / 1e9, flops / seconds / 1e12, 1e6 * seconds)
        assert bound_by_trace(traced, H200) == bound, row
    gemm = seen[9]  # of 17 rows, which reads 34 MB: 2.9 of 4.3 TB/s measured
    assert gemm.dram == pytest.approx(0.6, abs=0.001)
    assert bound_by_counters(gemm.dram, gemm.l2, gemm.tensor, None) == "memory bandwidth"
    assert 2 * 4096 * 4096 / gemm.seconds / H200.read_bytes_per_s == pytest.approx(0.66, abs=0.01)
