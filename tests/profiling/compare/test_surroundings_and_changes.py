"""What could explain a difference, and what else changed: planted one at a time."""

import gzip
import json
from dataclasses import replace

import pytest
from hand_made import ENVIRONMENT, MIB, cell, noisy, write_run

from profiling.compare import main
from profiling.comparison.changes import changes
from profiling.comparison.side import read_side
from profiling.comparison.surroundings import differences, unknown

CELL = ("net", "baseline")
PLAIN = (cell(), cell())


@pytest.fixture
def around(tmp_path):
    def compare(other, *, a=ENVIRONMENT, configs=("", ""), records=PLAIN):
        sides = [
            read_side(write_run(tmp_path / name, record, environment=found, config=config))
            for name, record, found, config in zip("ab", records, (a, other), configs, strict=True)
        ]
        return differences(*sides), unknown(*sides)

    return compare


def test_equal_environments_differ_in_nothing(around):
    later = {**ENVIRONMENT, "captured_at": "2027", "command": "other", "dtype_reason": "auto"}
    assert around(later) == ((), ())


def test_what_explains_most_comes_first(around):
    other = {
        "threads": 8,
        "extra": {"new": 1},
        "versions": {"torch": "2.12.0", "driver": "590.2", "numpy": "2"},
        "git": {"revision": "b" * 40, "dirty": True},
        "device": {"type": "cuda", "name": "another", "clock_sm_max_mhz": 1500},
    }
    found, _ = around(other)
    assert found == (
        ("device.name", "GPU of 2026", "another"),
        ("device.clock_sm_max_mhz", "1980", "1500"),
        ("versions.driver", "580.1", "590.2"),
        ("versions.torch", "2.11.0", "2.12.0"),
        ("git", "a" * 12, f"{'b' * 12} (dirty)"),
        ("threads", "16", "8"),
        ("versions.numpy", "absent", "2"),
        ("extra.new", "absent", "1"),
    )


def test_clocks_seen_while_timing_count_and_measured_ceilings_only_beyond_their_noise(around):
    clocked = [
        replace(cell(), metrics={"latency": {"sm_clock_min_mhz": low, "sm_clock_max_mhz": 1980}})
        for low in (1980, 1410)
    ]
    ceilings = [
        {**ENVIRONMENT, "ceilings": {"measured_at": str(rate), "seconds": rate, "copy": 4e12 + rate, "matmul": rate}}
        for rate in (600.0, 500.0)
    ]
    found, _ = around(ceilings[1], a=ceilings[0], records=clocked)
    assert found == (
        ("clock while timed", "1980 to 1980 MHz", "1410 to 1980 MHz"),
        ("ceilings.matmul", "600", "500"),
    )


@pytest.mark.parametrize(
    ("ceilings", "told"),
    [
        ({"lost_share": 0.01}, ()),
        ({"lost_share": 0.4, "disturbed": True}, (("ceilings", "undisturbed", "measured on a busy processor"),)),
    ],
)
def test_ceilings_that_were_disturbed_are_told_and_not_what_was_lost(around, ceilings, told):
    one, two = ({**ENVIRONMENT, "ceilings": {"copy": 4e12, **lost}} for lost in ({"lost_share": 0.03}, ceilings))
    assert around(two, a=one)[0] == told


def test_options_of_the_runs(around):
    configs = (
        "cell_timeout: 3\nvariant: {x: {mode: a}}\nonly: 1\n",
        "cell_timeout: 4\nvariant: {x: {mode: b}}\n",
    )
    found, _ = around(ENVIRONMENT, configs=configs)
    assert found == (("variant.x.mode", "a", "b"),)


@pytest.mark.parametrize(("scale", "shown"), [("full", False), ("tiny", True)])
def test_sizes_of_the_tiny_scale_explain_nothing_at_full_scale(around, scale, shown):
    configs = tuple(f"component: {{net: {{width: {width}, tiny: {{width: {width}}}}}}}\n" for width in (1, 2))
    environment = ENVIRONMENT | {"scale": scale}
    found, _ = around(environment, a=environment, configs=configs)
    assert ("component.net.width", "1", "2") in found
    assert (("component.net.tiny.width", "1", "2") in found) == shown


@pytest.mark.parametrize("config", ["when: 2026-13-45\n", "a: [\n", "[" * 5_000])
def test_a_config_that_cannot_be_read_is_passed_over(around, config):
    found, _ = around(ENVIRONMENT, configs=(config, "when: 1\n"))
    assert found == ()


def test_what_is_not_known_is_told(around):
    _, lines = around(None)
    assert lines == ("B has no environment.json beside it that can be read: what differs there is not known",)


def test_uncommitted_changes_are_told(around):
    _, lines = around({**ENVIRONMENT, "git": {"revision": "a" * 40, "dirty": True}})
    assert "B with uncommitted changes" in lines[0]


@pytest.fixture
def changed(tmp_path):
    def compare(one, two, prepare=lambda folder: None):
        sides = [read_side(write_run(tmp_path / name, record)) for name, record in (("a", one), ("b", two))]
        prepare(tmp_path)
        return changes(*sides, CELL)

    return compare


def test_equal_cells_changed_in_nothing(changed):
    assert changed(cell(samples=noisy(1)), cell(samples=noisy(1))) == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"memory": {"peak_allocated": 150 * MIB}}, ("peak allocated MiB", "100", "150")),
        ({"prepare": {"seconds": 30.0, "graphs": 1}}, ("prepare s", "1.000", "30.00")),
        ({"prepare": {"seconds": 1.04, "graphs": 2}}, ("graphs", "1.000", "2.000")),
        ({"parity": {"rel_l2": 0.002, "passed": True}}, ("parity rel. L2", "0.001000", "0.002000")),
        ({"dtype": "bfloat16"}, ("dtype", "float32", "bfloat16")),
    ],
)
def test_a_planted_change_is_the_one_told(changed, change, told):
    assert changed(cell(), cell(**change)) == (told,)


def test_a_wrong_cell_has_nothing_to_explain(changed):
    assert changed(cell(), cell(dtype="bfloat16", status="failed", reason="planted")) == ()


def kernel(name, microseconds, times=2):
    return [{"cat": "kernel", "name": name, "dur": microseconds}] * times


def test_kernels_of_the_traces(changed):
    traced = cell(trace={"trace": "traces/net.json.gz", "iterations": 2})
    kept, host = kernel("kept", 50.0), [{"cat": "cpu_op", "name": "aten::mm", "dur": 1}]
    events = {
        "a": [*kept, *host, *kernel("gone", 30.0), *kernel("slower", 10.0), *kernel("more", 4.0), *kernel("tiny", 0.1)],
        "b": [*kept, *kernel("new", 20.0), *kernel("slower", 25.0), *kernel("more", 4.0, 6), *kernel("tiny", 0.2)],
    }

    def write(folder):
        for name, found in events.items():
            (folder / name / "traces").mkdir()
            with gzip.open(folder / name / "traces" / "net.json.gz", "wt") as file:
                json.dump({"traceEvents": found}, file)

    assert changed(traced, traced, write) == (
        ("kernel vanished: gone", "1 × 30.00 µs", "–"),
        ("kernel appeared: new", "–", "1 × 20.00 µs"),
        ("kernel changed: slower", "1 × 10.00 µs", "1 × 25.00 µs"),
        ("kernel changed: more", "1 × 4.000 µs", "3 × 4.000 µs"),
    )


def recorded(**kernels):
    items = [{"name": name, "count": count, "ms": us * count / 1e3} for name, (count, us) in kernels.items()]
    return cell(inside={"kernels": items}, trace={"trace": "trace.json.gz", "iterations": 2})


ONE = recorded(kept=(2.0, 50.0), gone=(1.0, 30.0), slower=(4.0, 10.0))
TWO = recorded(kept=(2.0, 50.0), new=(1.0, 20.0), slower=(4.0, 25.0))
TOLD = (
    ("kernel changed: slower", "4 × 10.00 µs", "4 × 25.00 µs"),
    ("kernel vanished: gone", "1 × 30.00 µs", "–"),
    ("kernel appeared: new", "–", "1 × 20.00 µs"),
)


def test_kernels_of_the_records_are_enough_and_no_trace_is_read(changed):
    def damage(folder):
        for name in "ab":
            (folder / name / "trace.json.gz").write_bytes(b"no gzip")

    assert changed(ONE, TWO, damage) == TOLD


def test_names_that_were_cut_to_the_same_are_added_up(changed):
    halves = [{"name": "slower", "count": 2.0, "ms": 0.05}] * 2
    others = [{"name": "kept", "count": 2.0, "ms": 0.1}, {"name": "new", "count": 1.0, "ms": 0.02}]
    assert changed(ONE, replace(TWO, inside={"kernels": [*halves, *others]})) == TOLD


def test_kernels_of_one_record_alone_are_not_held_against_a_trace(changed):
    def write(folder):
        with gzip.open(folder / "b" / "trace.json.gz", "wt") as file:
            json.dump({"traceEvents": kernel("new", 20.0)}, file)

    assert changed(ONE, replace(TWO, inside=None), write) == ()


def test_idle_time_that_changed(changed):
    one, two = (cell(inside={"idle": {"host_ms": ms, "between_ms": 0.3}}) for ms in (0.5, 0.1))
    assert changed(one, two) == (("idle: waiting for the host, ms a call", "0.5000", "0.1000"),)


NO_TIMES = '{"traceEvents": [{"cat": "kernel", "name": "k"}]}'


@pytest.mark.parametrize("text", [None, "no json", "[]", "{}", '{"traceEvents": 3}', NO_TIMES, "[" * 100_000])
def test_a_damaged_trace_is_one_line(changed, text):
    content = b"no gzip" if text is None else gzip.compress(text.encode())
    one = cell(trace={"trace": "trace.json.gz", "iterations": 2})
    two = replace(one, memory={"peak_allocated": 150 * MIB}, kernels=({"name": "new", "file": "n.py"},))

    def write(folder):
        with gzip.open(folder / "a" / "trace.json.gz", "wt") as file:
            json.dump({"traceEvents": kernel("fine", 20.0)}, file)
        (folder / "b" / "trace.json.gz").write_bytes(content)

    old = replace(one, kernels=({"name": "old", "file": "o.py"},))
    memory, (what, known, lost), *sources = changed(old, two, write)
    assert memory[0] == "peak allocated MiB"
    assert (what, known) == ("kernels", "1 name")
    assert lost.startswith("trace.json.gz cannot be read: ")
    assert lost.endswith("Run again with trace=true.")
    assert sources == [
        ("generated kernel vanished: old", "o.py", "–"),
        ("generated kernel appeared: new", "–", "n.py"),
    ]


def test_a_damaged_trace_does_not_cost_the_judgement(tmp_path, capsys):
    traced = {"trace": {"trace": "trace.json.gz", "iterations": 2}}
    a, b = (
        write_run(tmp_path / name, cell(samples=noisy(factor, seed=seed), **traced))
        for name, factor, seed in (("a", 1, 1), ("b", 1.1, 2))
    )
    for run in (a, b):
        (run / "trace.json.gz").write_bytes(b"no gzip")
    assert main([str(a), str(b)]) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "1.10" in printed.out
    assert printed.out.count("trace.json.gz cannot be read") == 2


@pytest.mark.parametrize(
    ("one", "two", "told"),
    [
        (cell(), cell(parity=None), ("checked", "not checked")),
        (cell(parity={"reference": "fp32 eager"}), cell(), ("not checked", "checked")),
        (cell(parity=None), cell(parity={}), None),
    ],
)
def test_a_parity_check_that_only_one_side_has_is_told(changed, one, two, told):
    rows = {what: sides for what, *sides in changed(one, two)}
    assert rows.get("parity") == (list(told) if told else None)


@pytest.mark.parametrize(("revision", "told"), [(5, "5"), ([1], "[1]"), ({"x": 1}, "{'x': 1}")])
def test_a_revision_that_is_no_text_is_shown_as_it_is(around, revision, told):
    other = {**ENVIRONMENT, "git": {"revision": revision, "dirty": True}}
    found, _ = around(other)
    assert found == (("git", "a" * 12, f"{told} (dirty)"),)


def generated(*pairs):
    files = [{"name": name, "file": f"kernels/net/xx/{file}", "kind": "triton"} for name, file in pairs]
    return cell(kernels=(*files, {"name": "graph", "file": f"kernels/{pairs[0][1]}", "kind": "graph"}))


def test_sources_of_generated_kernels(changed):
    one = generated(("same", "s.py"), ("other", "o1.py"), ("gone", "g.py"))
    two = generated(("other", "o2.py"), ("same", "s.py"), ("new", "n.py"))
    assert changed(one, two) == (
        ("generated kernel changed: other", "o1.py", "o2.py"),
        ("generated kernel vanished: gone", "g.py", "–"),
        ("generated kernel appeared: new", "–", "n.py"),
    )


def test_many_kernels_are_cut_and_counted(changed):
    one, two = generated(("same", "s.py")), generated(("same", "s.py"), *((f"k{i}", f"{i}.py") for i in range(20)))
    found = changed(one, two)
    assert len(found) == 9
    assert found[-1][0] == "and 12 kernels more"
