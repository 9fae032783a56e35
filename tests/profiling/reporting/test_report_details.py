from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from profiling.reporting.details import causes, legend
from profiling.reporting.render import write_report
from profiling.results.records import Record

Make = Callable[..., Record]
Save = Callable[[Sequence[Record]], Path]
MIB = 2**20


def report(run: Path) -> str:
    return (run / "report.md").read_text(encoding="utf-8")


def test_cells_skipped_for_one_reason_share_a_line(make: Make) -> None:
    records = [
        make("cuda_graph", status="skipped", reason="no GPU"),
        make("broken", status="failed", reason="it raised"),
        make("compile_cuda_graph", status="skipped", reason="no GPU"),
        make("other", status="skipped", reason="no compiler"),
    ]
    assert causes(records) == (
        "world_model.broken failed: it raised",
        "2 cells skipped: no GPU (world_model.cuda_graph and world_model.compile_cuda_graph)",
        "1 cell skipped: no compiler (world_model.other)",
    )


def test_memory_by_phase_names_its_kinds(make: Make, save: Save) -> None:
    memory = {
        "phases": {"loaded": {"allocated": 2086 * MIB, "host_rss": 1335 * MIB}, "start": {"host_rss": 954 * MIB}},
        "peak_allocated": 2291 * MIB,
        "prepare_peak_allocated": 3000 * MIB,
        "graph_pool": 0,
    }
    run = save([make("baseline", 2.5, memory=memory)])
    write_report(run)
    section = report(run).partition("### Memory by phase")[2].partition("###")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.split("\n") if "|" in line]
    assert rows[0][2:] == ["phase", "allocated MiB", "graph pools MiB", "host RSS MiB"]
    dash = "\u2013"
    assert [row[2:] for row in rows[2:]] == [
        ["loaded", "2086", dash, "1335"],
        ["start", dash, dash, "954"],
        ["prepare peak", "3000", dash, dash],
        ["steady peak", "2291", "0", dash],
    ]


def test_other_metrics_show_their_scalars(make: Make, make_clocks: Callable[..., dict[str, Any]], save: Save) -> None:
    own = {"deadline": {"missed": 3, "budget_ms": 16.67, "samples": [1, 2], "hard": True, "who": "me"}, "score": 0.5}
    run = save([make("baseline", metrics=make_clocks(2.5) | own)])
    write_report(run)
    lines = report(run).partition("### Other metrics")[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")][2:] for line in lines if line.startswith("| world")]
    assert rows == [["deadline", "missed", "3.000"], ["deadline", "budget_ms", "16.67"], ["score", "value", "0.5000"]]


def test_how_the_times_were_taken(make: Make, save: Save) -> None:
    run = save([make("baseline", 2.5)])
    write_report(run)
    assert "stopped by" in report(run)
    assert "| 200 " in report(run)
    assert "| interval " in report(run)
    assert "| hot " in report(run)


def test_compiler_findings_and_files_to_open(make: Make, save: Save) -> None:
    breaks = [
        {"reason": f"call to print | {index}", "file": "models/net.py", "line": 40 + index} for index in range(12)
    ]
    record = make(
        "compile",
        2.5,
        compile={
            "compile_seconds": 20.5,
            "graphs": 2,
            "graph_breaks": breaks,
            "recompiles": [{"compile_id": "1/1", "reason": "size changed", "file": "models/net.py", "line": 7}],
            "cudagraph_skips": ["mutated inputs"],
            "index": "tl_out/x/index.html",
        },
        trace={"trace": "traces/x.json.gz", "operators": "traces/x.txt"},
        kernels=({"name": "triton_poi", "file": "kernels/a.py", "kind": "triton"},),
        notes=("clocks were not locked",),
    )
    run = save([record])
    text = write_report(run)
    for fact in (
        f"compile report {run}/tl_out/x/index.html",
        f"profiler trace (open in ui.perfetto.dev) {run}/traces/x.json.gz",
        f"operator tables {run}/traces/x.txt",
        "graph break: call to print | 0 (models/net.py:40)",
        "… and 7 more in report.md",
        "kernel triton_poi (triton) kernels/a.py",
        "world_model.compile: clocks were not locked",
    ):
        assert fact in text
    for fact in ("call to print \\| 11 (models/net.py:51)", "recompile 1/1: size changed (models/net.py:7)"):
        assert fact in report(run)
    assert "CUDA graph skipped: mutated inputs" in report(run)


def test_the_legend_says_whether_drift_is_in_the_intervals():
    once = Record("generic_forward", "net", "baseline", "ok")
    turns = Record("generic_forward", "net", "baseline", "ok", rounds=({"wall_ms": {"p50": 1.0}},) * 3)
    assert "drift between cells is not in it." in legend([once])[0]
    assert "drift from round to round of 3 is in it." in legend([turns])[0]
