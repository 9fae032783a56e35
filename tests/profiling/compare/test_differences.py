"""What could explain a difference, and what else changed in a cell: planted one at a time."""

import pytest
from msgspec.structs import replace
from planted_runs import ENVIRONMENT, MIB, PARITY, WARM, analysed, cell, loop, write_run

from profiling.compare.differences import cell_changes, run_differences, unknown_differences
from profiling.compare.loaded_run import read_run
from profiling.results.explained import Idle, KernelFile
from profiling.results.measured import Deadline, Memory, Prepare

PLAIN = (cell(), cell())


@pytest.fixture
def differences(tmp_path):
    """Return (differences between two runs, lines about what is unknown)."""

    def compare(other, *, a=ENVIRONMENT, configs=("", ""), records=PLAIN):
        runs = [
            read_run(write_run(tmp_path / name, record, environment=environment, config=config))
            for name, record, environment, config in zip("ab", records, (a, other), configs, strict=True)
        ]
        return [(row.name, row.a, row.b) for row in run_differences(*runs)], unknown_differences(*runs)

    return compare


def test_equal_environments_do_not_differ(differences):
    later = {**ENVIRONMENT, "captured_at": "2027", "command": "other", "dtype_reason": "auto"}
    assert differences(later) == ([], ())


def test_what_explains_most_comes_first(differences):
    other = {
        "threads": 8,
        "scale": "full",
        "versions": {"torch": "2.12.0", "driver": "590.2", "numpy": "2"},
        "user_git": {"revision": "b" * 40, "dirty": True},
        "tool_git": {"revision": "f" * 40, "dirty": False},
        "device": {"type": "cuda", "name": "another", "clock_sm_max_mhz": 1500},
    }
    assert differences(other)[0] == [
        ("device.name", "GPU of 2026", "another"),
        ("device.clock_sm_max_mhz", "1980", "1500"),
        ("versions.driver", "580.1", "590.2"),
        ("versions.torch", "2.11.0", "2.12.0"),
        ("git, your code", "a" * 12, f"{'b' * 12} (dirty)"),
        ("threads", "16", "8"),
        ("versions.numpy", "–", "2"),
    ]


def test_two_folders_outside_git_are_told_apart(differences):
    one, other = ({**ENVIRONMENT, "checkout": name} for name in ("A (before)", "B (after)"))
    assert differences(other, a=one)[0] == [("checkout", "A (before)", "B (after)")]


@pytest.mark.parametrize(("after", "rows"), [(500.0, [("ceilings.matmul_flops_per_s", "600", "500")]), (590.0, [])])
def test_measured_ceilings_count_beyond_their_noise(after, rows, differences):
    assert differences(ceilings(after, seconds=after), a=ceilings())[0] == rows


def ceilings(matmul=600.0, **more):
    rates = {"dtype": "bfloat16", "copy_bytes_per_s": 4e12, "read_bytes_per_s": 4e12, "bandwidth": [[1, 4e12]]}
    measured = {**rates, "matmul_flops_per_s": matmul, "launch_us": 2.0, "seconds": 1.0, **more}
    return {**ENVIRONMENT, "ceilings": measured}


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ({"lost_share": 0.01}, []),
        (
            {"lost_share": 0.4, "disturbed": True},
            [("ceilings", "measured undisturbed", "measured while other processes ran")],
        ),
    ],
)
def test_ceilings_that_were_disturbed_differ(differences, condition, rows):
    assert differences(ceilings(**condition), a=ceilings(lost_share=0.03))[0] == rows


def test_options_of_the_runs(differences):
    configs = (
        "cell_timeout: 3\nvariant: {x: {mode: a}}\nonly: 1\n",
        "cell_timeout: 4\nvariant: {x: {mode: b}}\n",
    )
    assert differences(ENVIRONMENT, configs=configs)[0] == [("variant.x.mode", "a", "b")]


@pytest.mark.parametrize(
    ("a", "b", "rows"),
    [
        ({"dtype": "float32"}, {"dtype": "float32"}, []),
        ({"dtype": "float32"}, {"dtype": "bfloat16"}, [("dtype", "float32", "bfloat16")]),
        ({}, {}, [("dtype", "auto", "float32")]),
    ],
)
def test_options_are_compared_by_what_auto_was_resolved_to(a, b, rows, differences):
    typed = (
        "dtype: auto\nscale: auto\ndevice: auto\ncheckpoint: auto\nthreads: null\nschedule: auto\n",
        "dtype: float32\nscale: full\ndevice: cuda:0\ncheckpoint: random\nthreads: 16\nschedule: fixed\n",
    )
    cells = (cell(device="cuda:0", weights="random"),) * 2
    found, _ = differences(ENVIRONMENT | b, a=ENVIRONMENT | a, configs=typed, records=cells)
    assert found == [*rows, ("schedule", "auto", "fixed")]


@pytest.mark.parametrize(("scale", "shown"), [("full", False), ("tiny", True)])
def test_sizes_of_the_tiny_scale_explain_nothing_at_full_scale(differences, scale, shown):
    configs = tuple(f"component: {{net: {{width: {width}, tiny: {{width: {width}}}}}}}\n" for width in (1, 2))
    environment = ENVIRONMENT | {"scale": scale}
    rows, _ = differences(environment, a=environment, configs=configs)
    assert ("component.net.width", "1", "2") in rows
    assert (("component.net.tiny.width", "1", "2") in rows) == shown


@pytest.mark.parametrize("config", ["when: 2026-13-45\n", "a: [\n", "[" * 5_000])
def test_a_config_that_cannot_be_read_is_skipped(differences, config):
    assert differences(ENVIRONMENT, configs=(config, "when: 1\n"))[0] == []


def test_unknown_differences_are_named(differences):
    (line,) = differences(None)[1]
    assert line.startswith("B has no readable environment.json")


def test_uncommitted_changes_of_the_same_revision_may_differ(differences):
    (line,) = differences({**ENVIRONMENT, "user_git": {"revision": "a" * 40, "dirty": True}})[1]
    assert "your code" in line
    assert "B with uncommitted changes" in line


def changes(one, two):
    return [(row.name, row.a, row.b) for row in cell_changes(one, two)]


def test_equal_cells_did_not_change():
    assert changes(cell(windows_ms=[1.0, 2.0]), cell(windows_ms=[1.0, 2.0])) == []


@pytest.mark.parametrize(
    ("change", "row"),
    [
        ({"memory": Memory(peak_allocated=150 * MIB)}, ("peak allocated (MiB)", "100", "150")),
        ({"prepare": Prepare(seconds=30.0, graphs=1)}, ("preparation (s)", "1.00", "30.0")),
        ({"prepare": Prepare(seconds=1.04, graphs=2)}, ("FX graphs", "1", "2")),
        ({"parity": replace(PARITY, rel_l2=0.002)}, ("parity error (relative L2)", "1.0e-03", "2.0e-03")),
        ({"dtype": "bfloat16"}, ("dtype", "float32", "bfloat16")),
        ({"parity": None}, ("parity", "checked", "not checked")),
    ],
)
def test_a_planted_change_is_the_one_shown(change, row):
    assert changes(cell(), cell(**change)) == [row]


def limited(**conditions):
    return cell(metrics=replace(PLAIN[0].metrics, latency=replace(WARM, **conditions)))


@pytest.mark.parametrize(
    ("before", "after", "rows"),
    [
        ({"limited_share": {}}, {"limited_share": {"power cap": 0.9}}, [("clocks limited: power cap", "0%", "90%")]),
        ({"limited_share": {"power cap": 0.88}}, {"limited_share": {"power cap": 0.9}}, []),
        ({"limited_share": None}, {"limited_share": {"power cap": 0.9}}, []),
        ({"cpu_lost_share": 0.01}, {"cpu_lost_share": 0.04}, [("CPU taken by other processes", "1.0%", "4.0%")]),
        ({"gpu_lost_share": 0.3}, {"gpu_lost_share": 0.0}, [("GPU taken by other processes", "30%", "0%")]),
        ({"sm_clock_median_mhz": 1980}, {"sm_clock_median_mhz": 1750}, [("SM clock, median (MHz)", "1980", "1750")]),
        ({"sm_clock_median_mhz": 1980}, {"sm_clock_median_mhz": 1940}, []),
    ],
)
def test_conditions_that_changed(before, after, rows):
    assert changes(limited(**before), limited(**after)) == rows


def test_what_one_run_alone_measured_is_not_compared():
    assert changes(cell(), cell(trace_analysis=analysed(Idle(host_ms=1.0, between_ms=0.1)))) == []


def test_frame_rates_that_a_loop_no_longer_holds():
    def played(late):
        rate = Deadline(fps=60.0, budget_ms=16.7, misses=late, bursts=late, longest_run=late, longest_stall_ms=0.0)
        return loop([10.0] * 600, deadlines={"60": rate})

    assert changes(played(0), played(60)) == [("holds 60 FPS", "yes", "no")]


def test_idle_time_that_changed():
    one, two = (cell(trace_analysis=analysed(Idle(host_ms=ms, between_ms=0.3))) for ms in (0.5, 0.1))
    assert changes(one, two) == [("GPU idle before launches per call (ms)", "0.5000", "0.1000")]


ONE = cell(
    trace_analysis=analysed(kept=(2.0, 50.0), gone=(1.0, 30.0), slower=(4.0, 10.0), more=(1, 4.0), tiny=(1, 0.1))
)
TWO = cell(trace_analysis=analysed(kept=(2.0, 50.0), new=(1.0, 20.0), slower=(4.0, 25.0), more=(3, 4.0), tiny=(1, 0.2)))
CHANGED = [
    ("kernel changed: slower", "4 × 10.00 µs", "4 × 25.00 µs"),
    ("kernel only in A: gone", "1 × 30.00 µs", "–"),
    ("kernel only in B: new", "–", "1 × 20.00 µs"),
    ("kernel changed: more", "1 × 4.000 µs", "3 × 4.000 µs"),
]


def test_kernels_that_changed():
    assert changes(ONE, TWO) == CHANGED


def test_names_that_were_shortened_to_the_same_are_added_up():
    rest = analysed(kept=(2.0, 50.0), new=(1.0, 20.0), more=(3, 4.0), tiny=(1, 0.2)).kernels
    half = analysed(slower=(2.0, 25.0)).kernels[0]
    two = replace(TWO, trace_analysis=replace(analysed(), kernels=(half, half, *rest)))
    assert changes(ONE, two) == CHANGED


def test_kernels_of_one_record_alone_are_not_compared():
    assert changes(ONE, replace(TWO, trace_analysis=None)) == []


def code(name, file, kind="triton"):
    return KernelFile(name=name, file=f"kernels/net/xx/{file}", kind=kind)


def generated(*pairs):
    return cell(kernels=(*(code(*pair) for pair in pairs), code("graph", pairs[0][1], "graph")))


def test_code_of_generated_kernels():
    one = generated(("same", "s.py"), ("other", "o1.py"), ("gone", "g.py"))
    two = generated(("other", "o2.py"), ("same", "s.py"), ("new", "n.py"))
    assert changes(one, two) == [
        ("code changed: other", "o1.py", "o2.py"),
        ("code only in A: gone", "g.py", "–"),
        ("code only in B: new", "–", "n.py"),
    ]


def test_many_kernels_are_cut_and_counted():
    one, two = generated(("same", "s.py")), generated(("same", "s.py"), *((f"k{i}", f"{i}.py") for i in range(20)))
    rows = changes(one, two)
    assert len(rows) == 9
    assert rows[-1][0] == "and 12 kernels more"
