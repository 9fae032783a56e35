"""What sweeps, trainings, launch calibrations, captured graphs, compilers and searches add to a report."""

import pytest
from msgspec import structs
from report_records import build, clocks, faster, run_data, titled

from profiling.report.answer import answer_section, notes_section
from profiling.report.cells import conditions_of
from profiling.report.recipes import recipes_section
from profiling.report.run_data import linked_file
from profiling.report.table import console
from profiling.report.targets import check_section, launches_section, shape_sweep_section, starts_section
from profiling.report.tune import contributions, tune_section
from profiling.results.verdicts import with_speedup

SHAPE = "clip_text@batch=4"
WITH = "Total time with preparation"


def calls(per_call, measured=(1, 10, 100), computed=(1000,)):
    """Make the metrics of a step whose every call takes `per_call` seconds."""
    points = [{"calls": n, "seconds": n * per_call, "measured": n in measured} for n in (*measured, *computed)]
    return clocks(1e3 * per_call) | {"calls": {"points": points, "seconds_per_call": per_call}}


def cell(variant, per_call, seconds, **changes):
    content = {"component": SHAPE, "metrics": calls(per_call), "prepare": {"seconds": seconds}}
    return build(variant, **(content | changes))


def values(row):
    return list(row.values())[2:]


@pytest.mark.parametrize("of", ["cpu", "gpu"])
def test_what_others_took_of_calls_in_a_row_is_a_condition(of):
    record = cell("baseline", 0.010, 0.5)
    assert conditions_of(record) == []
    slowed = structs.replace(record.metrics.calls, **{f"{of}_lost_share": 0.4})
    busy = structs.replace(record, metrics=structs.replace(record.metrics, calls=slowed))
    assert conditions_of(busy) == [f"calls in a row: 40% of the {of.upper()} went to other processes"]


@pytest.mark.parametrize(
    ("per_call", "prepare", "shown"),
    [
        (0.004, {"seconds": 20.5}, "3334"),  # 20 s more, and 6 ms less in each call
        (0.004, {"seconds": 0.25, "cold_s": 20.5}, "3334"),  # prepared from the cache of another cell
        (0.004, {"seconds": 0.4}, "0"),
        (0.0099, {"seconds": 0.6}, "–"),  # a difference that equal code may have
        (0.020, {"seconds": 20.5}, "never"),
    ],
)
def test_preparation_pays_after_the_calls_at_which_the_totals_cross(per_call, prepare, shown):
    """From what both cells measured to the table: 33.83 and 33.832 s of 3,333 calls, 33.84 and 33.836 s of 3,334."""
    eager, compiled = (
        cell(name, each, 0.0, prepare=spent, metrics=calls(each, (3333, 3334), ()))
        for name, each, spent in (("baseline", 0.010, {"seconds": 0.5}), ("compile", per_call, prepare))
    )
    row = titled(shape_sweep_section(run_data(eager, with_speedup(compiled, eager))))[WITH][1]
    assert row.get("pays after calls", "–") == shown
    assert row["3,333 calls, s"].startswith("~") == ("cold_s" in prepare)


def test_totals_with_preparation_say_what_is_computed_and_strike_out_what_is_wrong():
    """In a row as in one process of all shapes; without its baseline a variant pays after no number of calls."""
    compiled = cell("compile", 0.004, 20.5, speedup=faster(2.5, break_even_calls=3334))
    wrong = cell("quantized", 0.001, 2.0, status="failed", reason="parity: too far", speedup=faster(10))
    section = shape_sweep_section(run_data(cell("baseline", 0.010, 0.5), compiled, wrong))
    assert [values(row) for row in titled(section)[WITH]] == [
        ["0.510", "0.600", "1.50", "~10.5", "10.00", "–"],
        ["20.5", "20.5", "20.9", "~24.5", "4.000", "3334"],
        ["~~2.00~~", "~~2.01~~", "~~2.10~~", "~~~3.00~~", "~~1.000~~", "–"],
    ]
    assert any(line.startswith("~: computed") for line in section.legend)
    assert "pays after calls" not in titled(shape_sweep_section(run_data(compiled, wrong)))[WITH][0]
    point = {"component": "clip", "axis": "batch", "value": "all"}
    ranged = cell("baseline", 0.01, 0.5, metrics=calls(0.01, computed=()), point=point)
    legend = shape_sweep_section(run_data(ranged)).legend
    assert any("all shapes prepared in one process" in line for line in legend)
    assert not any("computed" in line for line in legend)


def number(middle, half=None):
    return {"p50": middle, "n": 15} | ({} if half is None else {"ci95": [middle - half, middle + half]})


def calibration(**costs):
    return build("eager", launches={"launch_calibration": {"rounds": 15, "elements": 1, **costs}, "operators": []})


def test_launch_costs_with_their_intervals_by_chain():
    """A CPU has its own columns and no word of a GPU, and what nobody measured has no column."""
    note = "up to width 128 every operator works for less time than its call costs the host"
    on_gpu = calibration(
        **{"device": "cuda:0", "dtype": "bfloat16", "host_us_per_launch": number(3.25, 0.05)},
        **{"gpu_us_per_launch": number(1.75), "starvation_elements": number(4_120_000.0, 1000)},
        linear={"rows": 1, "width": 64, "host_us_per_launch": number(5.5, 0.1), "starvation_note": note},
    )
    section = launches_section(run_data(on_gpu))
    assert titled(section)["Launch costs"] == [
        {
            **{"chain": "elementwise", "size": "1 element", "rows": "–", "host, a launch µs": "3.25 ±1.5%"},
            **{"GPU, a launch µs": "1.75", "GPU idles below: elements": "4,120,000 ±0.1%"},
        },
        {
            **{"chain": "linear", "size": "width 64", "rows": "1", "host, a launch µs": "5.50 ±1.8%"},
            **{"GPU, a launch µs": "–", "GPU idles below: elements": "–"},
        },
    ]
    assert "medians of 15 rounds" in section.lines[0]
    assert section.lines[1] == f"linear: {note}."
    linear = {"rows": 1, "width": 1, "dispatch_us_per_operator": number(0.59), "dispatch_bound_width": number(91)}
    on_cpu = calibration(device="cpu", dtype="float32", dispatch_us_per_operator=number(0.41), linear=linear)
    found = titled(launches_section(run_data(on_cpu)))["Launch costs"]
    assert "GPU" not in str(found)
    chains = ["elementwise", "1 element", "–", "0.410", "–"], ["linear", "width 1", "1", "0.590", "91.00"]
    assert [list(row.values()) for row in found] == list(chains)


def test_each_part_of_a_wide_table_of_tensors_names_them():
    form = {"dtype": "float32", "shape": [1, 8], "device": "cuda:0"}
    kept = {"path": "cache", "dtype": "float32", "shape": [8], "bytes": 32, "changed": True}
    call = {"inputs": [{"path": "x", **form}], "state": [kept]}
    (table,) = check_section(run_data(build("check", check={"calls": {"world_model": call}}))).tables
    parts = [part.splitlines() for part in console(table, width=40).split("\n\n")]
    assert len(parts) > 1
    names = [["component", "role", "name"], ["world_model", "input", "x"], ["world_model", "state", "cache"]]
    assert [[line.split()[:3] for line in (part[0], *part[-2:])] for part in parts] == [names] * len(parts)


def test_what_the_compiler_did_and_said_with_links_to_traces(tmp_path):
    log = {
        **{"index": "tl_out/x/index.html", "phases": {"dynamo": 1.25, "inductor": 18.0}},
        "graph_breaks": [{"reason": "call to print", "file": "models/net.py", "line": 40}],
        **{"recompiles": [{"compile_id": "0/1", "reason": "size"}], "cudagraph_skips": ["mutated inputs"]},
    }
    for name in ("tl_out/x/index.html", "traces/x.json.gz"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    prepare = {"seconds": 28.0, "graphs": 2, "graph_breaks": 1, "recompiles": 1}
    traces = {"trace": "traces/x.json.gz", "operators": "traces/x.txt"}
    compiled = build("compile", 2.5, compile=log, prepare=prepare, trace=traces)
    data = run_data(compiled, build("baseline", 3.0), folder=tmp_path)
    (prepared,) = titled(starts_section(data)).values()
    assert values(prepared[0]) == ["28.0", "2", "1", "1"]
    section = recipes_section(data)
    assert [values(row) for row in titled(section)["What the compiler reported"]] == [
        ["graph break", "–", "call to print", "models/net.py", "40"],
        ["recompile", "0/1", "size", "–", "–"],
        ["CUDA graph skipped", "–", "mutated inputs", "–", "–"],
    ]
    *_, files = section.tables
    assert "ui.perfetto.dev" in files.notes[0]
    _, ((_, _, trace, operators, report),) = files.shown()
    assert (trace.href, operators.href, report.href) == ("traces/x.json.gz", None, "tl_out/x/index.html")


def test_only_files_of_the_run_are_linked(tmp_path):
    run = tmp_path / "run"
    (run / "traces").mkdir(parents=True)
    (run / "traces" / "a b#1.json.gz").touch()
    (tmp_path / "outside.txt").touch()
    hrefs = {
        "traces/a b#1.json.gz": "traces/a%20b%231.json.gz",
        **dict.fromkeys(("traces/missing.gz", "javascript:alert(1)", "../outside.txt", "/etc/passwd")),
        **dict.fromkeys(("traces", "a\0b")),
    }
    for path, href in hrefs.items():
        link = linked_file(run, path)
        assert (link.text, link.href) == (path, href)


STEPS = "What the steps of the winner contribute"


def recipe(name, ms, seconds=28.0, preparing=None, **changes):
    known = {"prepare": preparing or {"seconds": seconds}}
    known |= {} if name == "baseline" else {"speedup": faster(10.0 / ms)}
    return build(name, ms, target="tune", **(known | changes))


EAGER = recipe("baseline", 10.0, seconds=0.1)


def test_a_warm_start_is_not_called_one_from_an_empty_cache():
    """With compile_cache=shared: inductor's own cache had the code of the winner, and nothing says what it takes."""
    warm = {"seconds": 2.0, "cache_hits": 3, "phases": {"inductor": 1.0}}
    both = recipe("compile", 5.0, seconds=30.0), recipe("compile+pdl", 4.0, preparing=warm)
    data = run_data(EAGER, *both)
    assert "world_model.compile+pdl: warm start" in notes_section(data).lines[0]
    assert not [row for row in titled(tune_section(data))[STEPS] if "adds to preparing s" in row]
    (row,) = titled(starts_section(data))["Preparation by phase"]
    assert row["in this run s"] == "2.00"


BUSY = {"latency": {"cold": False, "warmup_seconds": 0.1, "settled": True, "cpu_lost_share": 0.7}}


def test_that_no_recipe_or_perhaps_none_is_faster_is_said():
    for conditions, says in (({}, "no recipe is"), (BUSY, "it is undecided whether a recipe is")):
        slower = recipe("compile", 13.0, metrics=clocks(13.0) | conditions)
        wrong = recipe("wrong", 1.0, status="failed", reason="parity")
        (line,) = tune_section(run_data(recipe("baseline", 10.0), slower, wrong)).lines
        assert f"{says} faster than eager" in line
    for ms, said in ((9.9, True), (5.0, False)):
        (line,) = tune_section(run_data(recipe("baseline", 10.0), recipe("compile", ms))).lines
        assert "the winner is compile (tried: 1 recipe)" in line
        assert ("whether it is faster than baseline is undecided" in line) is said


def test_beside_other_processes_a_search_claims_what_is_left_without_them():
    records = (recipe("baseline", 10.0), recipe("compile", 7.0, metrics=clocks(7.0) | BUSY))
    assert titled(answer_section(run_data(*records)))["Cells"][1]["speedup vs baseline"] == "≥ 1.27×"
    (row,) = contributions(records, records[1])
    assert row.ratio.answer() == "slower"
