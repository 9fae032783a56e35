"""The compile log: planted graph breaks, recompiles and failures have their reasons and lines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.results.explained import CompileLog
from profiling.results.record import encode_sections
from profiling.trace import compile_log
from profiling.trace.compile_log import CompileLogError, parse_compile_log, phases_of, read_compile_log

PROGRAM = Path(__file__).with_name("planted_compiles.py")


def line_of(mark: str) -> int:
    lines = PROGRAM.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if f"# planted: {mark}" in line)


def run_traced(folder: Path, *command: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TORCH_TRACE": str(folder)}
    subprocess.run([sys.executable, *command], env=environment, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    run_traced(folder, str(PROGRAM))
    return folder


@pytest.fixture(scope="module")
def parsed(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompileLog]:
    run = tmp_path_factory.mktemp("run")
    summary = parse_compile_log(logs, run / "tl_out" / "planted.compile", root=PROGRAM.parent)
    assert summary is not None
    return run, summary


def test_the_report_is_there_and_named_relative_to_the_run(parsed: tuple[Path, CompileLog]) -> None:
    run, summary = parsed
    assert summary.index == "tl_out/planted.compile/index.html"
    assert "<html" in (run / summary.index).read_text().lower()
    assert "Stats" in (run / "tl_out" / "planted.compile" / "tlparse.log").read_text()


def test_breaks_have_their_reason_and_line(parsed: tuple[Path, CompileLog]) -> None:
    breaks = {(found.file, found.line): found for found in parsed[1].graph_breaks}
    file = PROGRAM.name
    assert set(breaks) == {
        (file, line_of("break in an inlined function")),
        (file, line_of("print")),
        (file, line_of("break in a loop")),
    }
    inlined = breaks[file, line_of("break in an inlined function")]
    assert inlined.reason == "Call to `torch._dynamo.graph_break()`"
    assert len(parsed[1].graph_breaks) == 3, "in outer, and once more in leaf itself: one place"
    assert breaks[file, line_of("print")].reason == "Failed to trace builtin operator"


def test_recompiles_have_their_guard_and_line(parsed: tuple[Path, CompileLog]) -> None:
    found = {entry.reason: entry for entry in parsed[1].recompiles}
    shape = found["tensor 'x' size mismatch at index 0. expected 2, actual 3"]
    assert shape.file == PROGRAM.name
    assert shape.compile_id.endswith("/1")
    factor = found["self.factor == 1"]
    assert (factor.file, factor.line) == (PROGRAM.name, line_of("constant"))


def test_failures_have_their_reason_and_line(parsed: tuple[Path, CompileLog]) -> None:
    failures = {entry.reason: entry for entry in parsed[1].failures}
    branch = failures["Data-dependent branching"]
    assert (branch.kind, branch.file, branch.line) == ("Unsupported", PROGRAM.name, line_of("branch on data"))
    backend = next(entry for entry in failures.values() if entry.kind == "BackendCompilerFailed")
    assert "planted backend failure" in backend.reason
    assert failures["Dynamo recompile limit exceeded"].file == PROGRAM.name


def test_totals(parsed: tuple[Path, CompileLog]) -> None:
    summary = parsed[1]
    assert summary.compile_seconds is not None
    assert 0 < summary.compile_seconds < 60
    assert sum(summary.phases.values()) == pytest.approx(summary.compile_seconds)
    assert set(summary.phases) == {"dynamo", "aot autograd"}  # nothing in the program is for inductor
    assert summary.cudagraph_skips == ()
    encode_sections(compile=summary)  # fits into a record


def test_two_processes_are_added_up(parsed: tuple[Path, CompileLog], logs: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("a.log", "b.log"):
        shutil.copy(next(logs.glob("*.log")), tmp_path / "logs" / name)
    (tmp_path / "logs" / "worker.log").write_text("")
    out, one = tmp_path / "run" / "tl_out" / "cell", parsed[1]
    both = parse_compile_log(tmp_path / "logs", out, root=PROGRAM.parent)
    assert both is not None
    assert len(both.recompiles) == 2 * len(one.recompiles)
    assert both.graph_breaks == one.graph_breaks, "at the same places"
    page = (tmp_path / "run" / both.index).read_text()
    assert "0/index.html" in page
    assert "b.log" in page
    assert (out / "1" / "index.html").is_file()


def test_no_compile_is_none(tmp_path: Path) -> None:
    run_traced(tmp_path / "eager", "-c", "import torch; torch.ones(3) + 1")
    (tmp_path / "empty.log").write_text("")
    for folder in (tmp_path / "eager", tmp_path, tmp_path / "absent"):
        assert parse_compile_log(folder, tmp_path / "tl_out" / "cell") is None


def test_a_log_cut_short_is_read_as_far_as_it_goes(logs: Path, tmp_path: Path) -> None:
    log = next(logs.glob("*.log")).read_bytes()
    seconds = []
    for end in (len(log) // 2, log.index(b'"dynamo_start"') + 20):
        (tmp_path / "cut.log").write_bytes(log[:end])
        summary = parse_compile_log(tmp_path, tmp_path / "tl_out" / "cell", root=PROGRAM.parent)
        assert summary is not None
        seconds.append(summary.compile_seconds)
    assert seconds[0] > 0
    assert seconds[1] is None, "died while compiling: absent, not 0"


def read(folder: Path, *entries: object) -> CompileLog:
    (folder / "raw.jsonl").write_text("\n".join([*map(json.dumps, entries), "not json"]))
    return read_compile_log([folder], folder, "index.html")


def test_cudagraph_skips_are_listed_once_with_the_line_that_they_blame(tmp_path: Path) -> None:
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
    assert found.compile_seconds == pytest.approx(4.75)


@pytest.mark.parametrize("stack", [True, False])
def test_a_recompile_has_the_line_of_its_guard_also_without_a_stack(tmp_path: Path, stack: bool) -> None:
    reason = f"0/1: self.pos == 1    # i = self.pos % n  # used  # {str(tmp_path)[2:]}/net.py:9 in forward (HINT: ...)"
    reason += f'\nUser stack trace:\n  File "{tmp_path}/net.py", line 9, in forward\n    i = ...' if stack else ""
    function = {"co_name": "forward", "co_filename": f"{tmp_path}/net.py", "co_firstlineno": 7}
    (found,) = read(tmp_path, {"compilation_metrics": {**function, "recompile_reason": reason}}).recompiles
    assert (found.reason, found.file, found.line) == ("self.pos == 1", "net.py", 9)


def test_phases_are_without_those_inside_them() -> None:
    forward = {
        "aot_autograd_cumulative_compile_time_us": 8_000_000,
        "inductor_cumulative_compile_time_us": 7_000_000,
        "inductor_code_gen_cumulative_compile_time_us": 5_000_000,
        "triton_compile_time_us": 4_500_000,
    }
    backward = {
        "backward_cumulative_compile_time_us": 3_000_000,
        "inductor_cumulative_compile_time_us": 2_000_000,
        "inductor_code_gen_cumulative_compile_time_us": 1_000_000,
        "triton_compile_time_us": 9_000_000,  # several at a time
    }
    failed = {"fail_type": "Unsupported"}
    phases = phases_of([(forward, 10.0), (backward, 3.0), (failed, 0.25)])
    assert phases == pytest.approx(
        {"dynamo": 2.25, "aot autograd": 2, "inductor": 3, "code generation": 0.5, "kernel compilation": 5.5}
    )


def test_a_message_of_an_unknown_shape_keeps_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Something new\nmore")
    entry = {"artifact": {"name": "dynamo_graph_break_reason"}, "payload_filename": "text.txt"}
    (found,) = read(tmp_path, entry).graph_breaks
    assert (found.reason, found.file, found.line) == ("Something new", None, None)


def test_tlparse_missing_is_one_line(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_log.shutil, "which", lambda *args, **kwargs: None)
    with pytest.raises(CompileLogError, match="pip install") as error:
        parse_compile_log(logs, tmp_path / "tl_out" / "cell")
    assert "\n" not in str(error.value)


def test_tlparse_is_looked_for_beside_python_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("venv", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tlparse").write_text("#!/bin/sh\necho planted failure >&2; exit 3\n")
        (tmp_path / folder / "tlparse").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    assert compile_log.find_tlparse() == tmp_path / "venv" / "tlparse"
    (tmp_path / "venv" / "tlparse").unlink()
    assert compile_log.find_tlparse() == tmp_path / "path" / "tlparse"


def test_tlparse_failing_is_one_line(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "tlparse"
    program.write_text("#!/bin/sh\necho planted failure >&2; exit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(compile_log, "find_tlparse", lambda: program)
    with pytest.raises(CompileLogError, match="exit code 3: planted failure") as error:
        parse_compile_log(logs, tmp_path / "tl_out" / "cell")
    assert "\n" not in str(error.value)
