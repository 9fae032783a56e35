"""The compile log: planted graph breaks, recompiles and failures have their reasons and lines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.results.record import encode_sections
from profiling.trace.compile_log import CompileLogError, find_tlparse, parse_compile_log, read_compile_log

PROGRAM = Path(__file__).with_name("planted_compiles.py")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    environment = {**os.environ, "TORCH_TRACE": str(folder)}
    subprocess.run([sys.executable, PROGRAM], env=environment, check=True, capture_output=True, timeout=120)
    (file,) = folder.glob("*.log")
    return file.read_bytes()


def parsed(folder, *logs):
    """Parse the logs of processes into a run, which is `folder`."""
    (folder / "logs").mkdir()
    for number, log in enumerate(logs):
        (folder / "logs" / f"{number}.log").write_bytes(log)
    return parse_compile_log(folder / "logs", folder / "tl_out" / "planted.compile", root=PROGRAM.parent)


def test_planted_breaks_recompiles_and_failures_have_their_reasons_and_lines(tmp_path, log):
    marks = (line.partition("# planted: ")[2] for line in PROGRAM.read_text().splitlines())
    line_of, file = {mark: number for number, mark in enumerate(marks, 1)}, PROGRAM.name
    summary = parsed(tmp_path, log)
    breaks = {(each.file, each.line): each.reason for each in summary.graph_breaks}
    assert breaks == {
        (file, line_of["break in an inlined function"]): "Call to `torch._dynamo.graph_break()`",
        (file, line_of["break in a loop"]): "Call to `torch._dynamo.graph_break()`",
    }
    assert len(summary.graph_breaks) == 2, "in outer, and once more in leaf itself: one place"
    recompiles = {each.reason: each for each in summary.recompiles}
    shape = recompiles["tensor 'x' size mismatch at index 0. expected 2, actual 3"]
    assert (shape.file, shape.compile_id.endswith("/1")) == (file, True)
    assert recompiles["self.factor == 1"].line == line_of["constant"]
    failures = {each.reason: each for each in summary.failures}
    branch = failures["Data-dependent branching"]
    assert (branch.kind, branch.file, branch.line) == ("Unsupported", file, line_of["branch on data"])
    (backend,) = (each for each in summary.failures if each.kind == "BackendCompilerFailed")
    assert "planted backend failure" in backend.reason
    assert failures["Dynamo recompile limit exceeded"].file == file
    assert summary.cudagraph_skips == ()

    assert summary.index == "tl_out/planted.compile/index.html"
    assert "<html" in (tmp_path / summary.index).read_text().lower()
    assert "Stats" in (tmp_path / "tl_out" / "planted.compile" / "tlparse.log").read_text()
    encode_sections(compile=summary)  # fits into a record


def test_two_processes_are_added_up_and_a_log_cut_short_is_read_as_far_as_it_goes(tmp_path, log):
    both = parsed(tmp_path, log, log[: len(log) // 2], b"")
    assert "break in a loop" in PROGRAM.read_text().splitlines()[both.graph_breaks[-1].line - 1]
    assert len(both.graph_breaks) == 2, "at the same places"
    page = (tmp_path / both.index).read_text()
    assert "0/index.html" in page
    assert "1.log" in page
    assert (tmp_path / both.index).with_name("1").joinpath("index.html").is_file()
    (tmp_path / "logs" / "0.log").unlink()
    (tmp_path / "logs" / "1.log").write_bytes(log[: log.index(b'"dynamo_start"') + 20])
    died = parse_compile_log(tmp_path / "logs", tmp_path / "tl_out" / "cell")
    assert died.failures == (), "died while compiling"


def test_no_compile_is_none(tmp_path):
    """torch makes the folder with the first line of a log."""
    (tmp_path / "empty.log").write_text("")
    for folder in (tmp_path, tmp_path / "absent"):
        assert parse_compile_log(folder, tmp_path / "tl_out" / "cell") is None


def read(folder, *entries):
    (folder / "raw.jsonl").write_text("\n".join([*map(json.dumps, entries), "not json"]))
    return read_compile_log([folder], folder, "index.html")


def test_cudagraph_skips_are_listed_once_with_the_line_that_they_blame(tmp_path):
    reasons = (
        "skipping cudagraphs due to cpu device (arg1_1)",
        "skipping cudagraphs due to mutated inputs (1 instances). Found from : \n"
        f'   File "{tmp_path}/models/net.py", line 9, in forward\n    self.step()\n'
        f'  File "{tmp_path}/models/net.py", line 12, in step\n    self.count.add_(1)\n\n',
    )
    metrics = {"compile_id": "0/0", "entire_frame_compile_time_s": 1.5}
    forward = [{"compilation_metrics": {**metrics, "cudagraph_skip_reason": reasons[each]}} for each in (0, 0, 1)]
    backward = {"bwd_compilation_metrics": {"duration_us": 250_000, "entire_frame_compile_time_s": None}}
    found = read(tmp_path, *forward, backward)
    mutated = "skipping cudagraphs due to mutated inputs (1 instances), at models/net.py:12"
    assert found.cudagraph_skips == (reasons[0], mutated)


@pytest.mark.parametrize("stack", [True, False])
def test_a_recompile_has_the_line_of_its_guard_also_without_a_stack(tmp_path, stack):
    reason = f"0/1: self.pos == 1    # i = self.pos % n  # used  # {str(tmp_path)[2:]}/net.py:9 in forward (HINT: ...)"
    reason += f'\nUser stack trace:\n  File "{tmp_path}/net.py", line 9, in forward\n    i = ...' if stack else ""
    function = {"co_name": "forward", "co_filename": f"{tmp_path}/net.py", "co_firstlineno": 7}
    (found,) = read(tmp_path, {"compilation_metrics": {**function, "recompile_reason": reason}}).recompiles
    assert (found.reason, found.file, found.line) == ("self.pos == 1", "net.py", 9)


def test_a_message_of_an_unknown_shape_keeps_its_first_line(tmp_path):
    (tmp_path / "text.txt").write_text("Something new\nmore")
    entry = {"artifact": {"name": "dynamo_graph_break_reason"}, "payload_filename": "text.txt"}
    (found,) = read(tmp_path, entry).graph_breaks
    assert (found.reason, found.file, found.line) == ("Something new", None, None)


def test_tlparse_is_looked_for_beside_python_first_and_its_failures_are_one_line(tmp_path, monkeypatch):
    for folder in ("venv", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tlparse").write_text("#!/bin/sh\necho planted failure >&2; exit 3\n")
        (tmp_path / folder / "tlparse").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    assert find_tlparse() == tmp_path / "venv" / "tlparse"
    (tmp_path / "venv" / "tlparse").unlink()
    assert find_tlparse() == tmp_path / "path" / "tlparse"
    with pytest.raises(CompileLogError, match=r"^[^\n]*exit code 3: planted failure$"):
        parsed(tmp_path, b'"dynamo_start"')
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CompileLogError, match=r"^[^\n]*pip install[^\n]*$"):
        find_tlparse()
