"""A run as text and as a page: the answer first, whole and small, asking nobody for anything, without torch.

Names of any kind stay text.
"""

import json
import re
import subprocess
import sys
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from hostile import BREAKOUT, ENVIRONMENT, check_only_text, hostile_records
from parsed_page import Parsed
from report_records import build, build_loop, frame_loop

from profiling.report.__main__ import main
from profiling.report.page import Section, render_page
from profiling.report.render import run_report, write_report
from profiling.report.run_data import load_run
from profiling.report.table import console, fits
from profiling.results.jsonl import append_record

ROOT = Path(__file__).parents[3]
KNOWN = {
    **{"captured_at": "2026-01-02T03:04:05Z", "command": "python -m profiling.generic_forward component=world_model"},
    "user_git": {"revision": "abcdef1234567890", "dirty": True},
    "versions": {"python": "3.11.9", "torch": "2.11.0", "cuda": "12.8"},
    "device": {"type": "cuda", "name": "NVIDIA H200", "memory_bytes": 140 * 2**30, "multiprocessors": 132},
    **{"cpu": {"model": "Some CPU", "cores": 16}, "threads": 8, "seed": 0, "dtype": "bfloat16"},
    "scale": "tiny",
}
WITHOUT_TORCH = """
import runpy, sys
for name in ("torch", "triton", "hydra", "omegaconf", "yaml", "rich", "requests", "psutil"):
    sys.modules[name] = None
sys.argv = ["report", sys.argv[1]]
runpy.run_module("profiling.report", run_name="__main__")
"""


def test_the_answer_comes_first_and_the_paths_last(three, save):
    run = save([msgspec.structs.replace(record, scale="tiny") for record in three])
    (run / "environment.json").write_text(json.dumps(KNOWN))
    (run / "traces").mkdir()
    lines = write_report(run).text.splitlines()
    assert (lines[0].split()[:2], lines[2].split()[:2]) == (["component", "fastest"], ["world_model", "compile"])
    start = next(i for i, line in enumerate(lines) if line.startswith("NVIDIA"))
    assert " ".join(line.strip() for line in lines[start : start + 4]).startswith(
        "NVIDIA H200 · 132 SMs · 140 GiB · Some CPU · 16 cores · 8 threads torch 2.11.0 · CUDA 12.8 · python 3.11.9 "
        "scale tiny (these times say nothing about the full networks) · bfloat16 · seed 0 · git abcdef"
    )
    assert "world_model.cuda_graph failed: parity: error 1.2" in lines
    paths = [f"run: {run}", f"traces, for Perfetto: {run / 'traces'}", f"report: {run / 'report.html'}"]
    assert lines[-3:] == paths
    assert max(map(len, lines[:-3])) <= 100, "all but the paths, whose length is the user's"
    report, first = (run / "report.md").read_text(), (run / "report.html").read_bytes()
    assert "## generic_forward: 2026-01-02" in report
    assert "```bash\npython -m profiling.generic_forward component=world_model\n```" in report
    assert str(run.parent) not in report
    write_report(run)
    assert (run / "report.html").read_bytes() == first
    assert not list(run.glob(".*"))


def test_the_tables_of_a_committed_run_fit_a_hundred_columns(committed):
    data = load_run(committed)
    assert max(len(line) for line in run_report(data).console().splitlines() if str(committed) not in line) <= 100
    details = run_report(data).console("report")
    for table in (table for section in run_report(data).sections for table in section.tables if table):
        if fits(table.depth, "report"):
            assert console(table, depth="report") in details
    assert "nan" not in details.split()


def test_a_damaged_environment_leaves_lines_out(save):
    run = save([])
    assert "No cell has ended yet." in write_report(run).text
    append_record(run, build("baseline", 2.5))
    for content in ('{"device": "odd", "versions": 3, "scale": null}', '{"cut off": ', "[1]"):
        (run / "environment.json").write_text(content)
        printed = write_report(run).text
        assert "baseline" in printed
        assert "environment.json is damaged" in printed
        assert "None" not in (run / "report.md").read_text()


def test_a_long_reason_stands_in_full_and_names_its_log(save):
    reason = "CUDA out of memory | tried to allocate " + "many " * 60 + "bytes"
    run = save([build("compile", status="failed", reason=reason)])
    (run / "cells").mkdir()
    (run / "cells" / "world_model.compile.log").touch()
    text = " ".join(write_report(run).text.split())
    assert f"world_model.compile failed: {reason} (log: cells/world_model.compile.log)" in text
    assert "memory \\| tried" in (run / "report.md").read_text()


def test_a_folder_that_cannot_be_written_still_reports(save, monkeypatch):
    run = save([build("baseline", 2.5)])
    (run / "report.md").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    text, is_written = write_report(run)
    assert not is_written, "exit code 1"
    assert "2.500" in text
    lost = text.splitlines()[-1]
    assert lost.startswith("report.md and report.html could not be written: No space left on device.")
    assert lost.endswith(f"-m profiling.report {run}"), "what to type next"
    assert (run / "report.md").read_text() == "old"
    assert not list(run.glob(".*"))


def test_it_runs_where_torch_cannot_be_imported_in_a_terminal_without_unicode(three, save):
    run = save([*three, build_loop("cuda_graph")])
    command = [sys.executable, "-c", WITHOUT_TORCH, str(run)]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert b"11? (10-13)" in done.stdout
    assert (run / "report.html").is_file()


def test_one_format_prints_that_one_and_writes_nothing(save, capsys):
    marks = {
        **{"table": "run: ", "markdown": "## generic_forward", "csv": "p50_ms,"},
        "json": '"fastest_correct": "baseline"',
        "junit": '<testcase classname="world_model" name="baseline" time="0.002500000" />',
    }
    run = save([build("baseline", 2.5)])
    for form, mark in marks.items():
        assert main([str(run), "--format", form]) == 0
        assert mark in capsys.readouterr().out
    assert [path.name for path in run.iterdir()] == ["results.jsonl"]


ALWAYS = {"answer", "environment", "config", "command"}
EXPECTED = {
    "h200_main": {"details", "latency", "starts", "recipes", "roofline", "notes"},
    "h200_realtime": {"details", "latency", "realtime", "roofline", "starts", "recipes", "notes"},
}
#: Attributes whose value a browser may fetch.
FETCHED = ("src", "srcset", "href", "data", "poster", "action", "formaction", "background", "xlink:href")


@pytest.fixture(scope="module")
def page(committed):
    return run_report(load_run(committed)).page()


@pytest.fixture(scope="module")
def parsed(page):
    return Parsed(page)


def test_a_page_is_whole_and_small_and_names_no_path_of_the_machine(page, committed, parsed):
    assert len(page.encode()) <= 1.5e6
    assert str(committed.parent) not in page
    sections = {attributes["id"] for attributes in parsed.all("section")}
    assert sections >= ALWAYS
    assert sections - ALWAYS == EXPECTED.get(committed.name, sections - ALWAYS)
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(parsed.charts()) <= set(ids)
    report = (committed / "report.md").read_text(encoding="utf-8")
    rows = sum(line.startswith("|") and not re.fullmatch(r"[|\-: ]+", line) for line in report.splitlines())
    assert len(parsed.all("tr")) >= rows, "all of the report"
    folds = sum(attributes.get("class") == "fold" for attributes in parsed.all("details"))
    assert len(parsed.all("table")) - folds <= 1, "tables are on demand, but for the answer"


def test_nothing_on_a_page_is_fetched(page, parsed):
    for tag, attributes in parsed.elements:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in FETCHED:
            value = attributes.get(name)
            assert value is None or value == "data:," or re.match(r"#|[\w.%/-]+$", value), (tag, name, value)
    assert "url(" not in page.partition("<style>")[2].partition("</style>")[0]
    policy = parsed.all("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    running = [s for s, a in zip(parsed.scripts, parsed.all("script"), strict=True) if a.get("type") is None]
    digests = [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in running]
    assert policy.partition("script-src ")[2].partition(";")[0].split() == digests


def test_hostile_names_are_only_text(write_page):
    page = write_page(hostile_records(build, frame_loop()), ENVIRONMENT, BREAKOUT).read_text(encoding="utf-8")
    check_only_text(page)
    assert "{{7*7}}" in page


def test_a_name_breaks_between_the_steps_of_a_recipe_or_else_between_its_words():
    names = {
        "image_decoder, 2 TB/s": "image_<wbr>decoder, 2 TB/s",
        "channels_last+cuda_graph": "channels_last+<wbr>cuda_graph",
        "decoder.channels_last+compile": "decoder.<wbr>channels_last+<wbr>compile",
    }
    page = render_page("names", (), [Section("names", "Names", [*names])])
    assert all(f"<li>{shown}</li>" in page for shown in names.values())
