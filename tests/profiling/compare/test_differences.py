"""What could explain a difference, and what else changed in a cell: planted one at a time."""

from itertools import count

import pytest
from msgspec.structs import replace
from planted_runs import ENVIRONMENT, MIB, PARITY, WARM, analysed, cell, loop, write_run

from profiling.compare.cells import read_run
from profiling.compare.differences import cell_changes, run_differences
from profiling.results.energy import Energy, EnergyWindow
from profiling.results.explanations import Idle
from profiling.results.measured import Deadline, Memory, Metrics, Prepare, Start, Starts


@pytest.fixture
def differences(tmp_path):
    """Return the differences between two runs."""
    numbers = count()

    def compare(other, *, a=ENVIRONMENT, configs=("", "")):
        sides = zip((a, other), configs, strict=True)
        runs = [
            read_run(write_run(tmp_path / f"{next(numbers)}", cell(), environment=environment, config=config))
            for environment, config in sides
        ]
        return [(row.name, row.a, row.b) for row in run_differences(*runs)]

    return compare


def test_what_explains_most_comes_first(differences):
    other = {
        **{"captured_at": "2027", "command": "other", "threads": 8, "scale": "full"},
        "versions": {"torch": "2.12.0", "driver": "590.2", "numpy": "2"},
        "user_git": {"revision": "b" * 40, "dirty": True, "diff": "1234567890"},
        "tool_git": {"revision": "f" * 40, "dirty": False},
        "device": {"type": "cuda", "name": "another", "power_limit_w": 500.0},
    }
    assert differences(other) == [
        ("git, your code", "a" * 12, f"{'b' * 12} with changes 12345678"),
        ("device.name", "GPU of 2026", "another"),
        ("device.power_limit_w", "700.0", "500.0"),
        ("versions.torch", "2.11.0", "2.12.0"),
        ("versions.driver", "580.1", "590.2"),
        ("threads", "16", "8"),
        ("versions.numpy", "–", "2"),
    ]


def test_checkouts_and_uncommitted_changes_of_a_revision_are_told_apart(differences):
    one, other = ({**ENVIRONMENT, "checkout": name} for name in ("A (before)", "B (after)"))
    assert differences(other, a=one) == [("checkout", "A (before)", "B (after)")]
    changed = {"revision": "a" * 40, "dirty": True}
    one, other = ({**ENVIRONMENT, "user_git": {**changed, "diff": diff * 16}} for diff in "12")
    assert differences(one, a=one) == []
    assert [name for name, *_ in differences(other, a=one)] == ["git, your code"]


def test_options_are_compared_by_what_auto_was_resolved_to(differences):
    typed = (
        "cell_timeout: 3\nvariant: {x: {mode: a}}\nonly: 1\ndtype: auto\nthreads: null\nschedule: auto\n",
        "cell_timeout: 4\nvariant: {x: {mode: b}}\ndtype: float32\nthreads: 16\nschedule: fixed\n",
    )
    one, other = ({**ENVIRONMENT, "dtype": dtype} for dtype in ("float16", "bfloat16"))
    resolved = [("dtype", "float16", "bfloat16"), ("variant.x.mode", "a", "b"), ("schedule", "auto", "fixed")]
    assert differences(other, a=one, configs=typed) == resolved
    for unreadable in ("when: 2026-13-45\n", "a: [\n", "[" * 5_000):
        assert differences(ENVIRONMENT, configs=(unreadable, "when: 1\n")) == []


def changes(one, two):
    return [(row.name, row.a, row.b) for row in cell_changes(one, two)]


def limited(**conditions):
    return {"metrics": Metrics(latency=replace(WARM, **conditions))}


def idle(host_ms):
    return {"trace_analysis": analysed(Idle(host_ms=host_ms, between_ms=0.3))}


def cold_start(seconds):
    return {"starts": Starts(cold=Start(seconds=seconds, phases={}))}


WARM_START = Prepare(seconds=0.1, graphs=1, cache="from compile", cold_s=30.0)
CAPPED = limited(limited_share={"power cap": 0.9})


@pytest.mark.parametrize(
    ("before", "after", "row"),
    [
        ({"windows_ms": [1.0, 2.0]}, {"windows_ms": [1.0, 2.0]}, None),
        ({}, {"memory": Memory(peak_allocated=150 * MIB)}, ("peak memory MiB", "100", "150")),
        ({}, {"prepare": Prepare(seconds=30.0)}, ("preparation s", "1.00", "30.0")),
        ({}, {"prepare": WARM_START}, None),
        ({"prepare": Prepare(seconds=1, graphs=1)}, {"prepare": Prepare(seconds=1, graphs=2)}, ("FX graphs", "1", "2")),
        (cold_start(50.0), cold_start(80.0), ("cold start s", "50.0", "80.0")),
        ({}, {"parity": replace(PARITY, rel_l2=0.002)}, ("relative L2 error", "1.0e-03", "2.0e-03")),
        ({}, {"dtype": "bfloat16"}, ("dtype", "float32", "bfloat16")),
        ({}, {"parity": None}, ("parity", "checked", "not checked")),
        (idle(0.5), idle(0.1), ("idle, waiting for the host ms", "0.5000", "0.1000")),
        ({}, idle(1.0), None),  # which one run alone measured
        (limited(limited_share={}), CAPPED, ("clocks limited: power cap", "0%", "90%")),
        (limited(limited_share={"power cap": 0.88}), CAPPED, None),
        (limited(limited_share=None), CAPPED, None),
        (
            *(limited(sm_clock_median_mhz=1980), limited(sm_clock_median_mhz=1750)),
            ("median SM clock MHz", "1980", "1750"),
        ),
        (limited(sm_clock_median_mhz=1980), limited(sm_clock_median_mhz=1940), None),
    ],
)
def test_a_planted_change_is_the_one_shown(before, after, row):
    assert changes(cell(**before), cell(**after)) == ([] if row is None else [row])


def test_loops_of_other_programs_are_told_apart():
    one, other = loop(stages=("world",)), loop(stages=("world", "sound"), target_fps=30.0)
    assert changes(one, other) == [("target fps", "60.0", "30.0"), ("stages", "world", "world, sound")]


def test_frame_rates_that_a_loop_no_longer_holds():
    def played(late):
        rate = Deadline(fps=60.0, budget_ms=16.7, misses=late, bursts=late, longest_stall_ms=0.0)
        return loop([10.0] * 600, deadlines={"60": rate})

    assert changes(played(0), played(60)) == [("holds 60 FPS", "yes", "no")]


@pytest.mark.parametrize(
    ("joules", "said"),
    [(1.055, "1.055 (undecided: 1.05× ±"), (0.5, "0.5000 (less: 0.500× ±"), (1.2, "1.200 (more: 1.20× ±")],
)
def test_energy_is_compared_with_an_interval(joules, said):
    def measured(known):
        joules = [10 * known * (1 + 0.002 * (-1) ** number) for number in range(8)]
        parts = [EnergyWindow(seconds=1.0, calls=10.0, joules=each) for each in joules]
        return cell(energy=Energy(joules_per_frame=known, windows=tuple(parts)))

    (found,) = changes(measured(1.0), measured(joules))
    assert found[:2] == ("J/frame", "1.000")
    assert found[2].startswith(said)
    assert changes(measured(1.0), cell(energy=Energy(reason="no counter"))) == []


def test_kernels_that_changed():
    before = analysed(kept=(2.0, 50.0), gone=(1.0, 30.0), slower=(4.0, 10.0), more=(1, 4.0), tiny=(1, 0.1))
    after = analysed(kept=(2.0, 50.0), new=(1.0, 20.0), slower=(2.0, 25.0), more=(3, 4.0), tiny=(1, 0.2))
    again = analysed(slower=(2.0, 25.0))  # names that were shortened to the same are added up
    one, two = cell(trace_analysis=before), cell(trace_analysis=replace(after, kernels=after.kernels + again.kernels))
    assert changes(one, two) == [
        ("kernel changed: slower", "4 × 10.00 µs", "4 × 25.00 µs"),
        ("kernel only in A: gone", "1 × 30.00 µs", "–"),
        ("kernel only in B: new", "–", "1 × 20.00 µs"),
        ("kernel changed: more", "1 × 4.000 µs", "3 × 4.000 µs"),
    ]
    assert changes(one, replace(two, trace_analysis=None)) == [], "of one record alone"
    many = cell(trace_analysis=analysed(**{f"k{i}": (1, i) for i in range(1, 21)}))
    most = [name for name, *_ in changes(cell(trace_analysis=analysed(a=(1, 1.0))), many)]
    assert most == [f"kernel only in B: k{i}" for i in range(20, 12, -1)]
