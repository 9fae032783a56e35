import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from profiling.errors import InputError
from profiling.reporting.render import write_report
from profiling.results.records import Record

Make = Callable[..., Record]
Save = Callable[[Sequence[Record]], Path]

ENVIRONMENT: dict[str, Any] = {
    "captured_at": "2026-01-02T03:04:05Z",
    "command": "python -m profiling.generic_forward component=world_model",
    "git": {"revision": "abcdef1234567890", "dirty": True},
    "versions": {"python": "3.11.9", "torch": "2.11.0", "cuda": "12.8", "triton": None},
    "device": {"type": "cuda", "name": "NVIDIA H200", "memory_bytes": 140 * 2**30, "capability": [9, 0]},
    "cpu": {"model": "Some CPU", "cores": 16},
    "threads": 8,
    "seed": 0,
    "scale": "tiny",
    "scale_reason": "cpu: the full size takes {minutes}",
    "dtype": "bfloat16",
}


def report(run: Path) -> str:
    return (run / "report.md").read_text(encoding="utf-8")


def test_console_holds_table_causes_verdict_weights_and_folder(three: tuple[Record, ...], save: Save) -> None:
    run = save(three)
    text = write_report(run)
    assert "11.5× [11.4, 11.6]" in text
    assert "world_model.cuda_graph failed: parity: relative L2 error 1.2 is above 0.0078" in text
    assert "world_model: compile is fastest" in text
    assert "1,093,823,296 parameters, bfloat16, cuda:0, weights: random (make checkpoints)" in text
    assert "~~Struck out~~" in text
    assert text.splitlines()[-2:] == [f"run: {run}", f"open in a browser: {run / 'report.html'}"]


def test_files_are_written_whole_and_name_no_outside_path(three: tuple[Record, ...], save: Save) -> None:
    run = save(three)
    write_report(run)
    assert sorted(path.name for path in run.iterdir()) == ["classic.txt", "report.html", "report.md", "results.jsonl"]
    assert str(run.parent) not in report(run)
    assert "## generic_forward: 2026-01-02" in report(run)
    assert "* Torch Compile - WM" in (run / "classic.txt").read_text(encoding="utf-8")


def test_environment_in_compact_lines(make: Make, save: Save) -> None:
    run = save([make("baseline", 2.5)])
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
    first, second, third = write_report(run).splitlines()[:3]
    assert first == "NVIDIA H200 · capability 9.0 · 140.0 GiB · Some CPU · 16 cores · 8 threads"
    assert second == "torch 2.11.0 · CUDA 12.8 · python 3.11.9"
    assert third.startswith("scale tiny (cpu: the full size takes {minutes}) · bfloat16 · seed 0")
    assert "git abcdef123456 (dirty)" in third
    assert "```bash\npython -m profiling.generic_forward component=world_model\n```" in report(run)


@pytest.mark.parametrize(
    "content", ['{"device": "odd", "versions": 3, "git": [], "scale": null}', '{"cut off": ', "[1]", '"text"', ""]
)
def test_partial_environment_leaves_lines_out(make: Make, save: Save, content: str) -> None:
    run = save([make("baseline", 2.5)])
    (run / "environment.json").write_text(content)
    assert "component" in write_report(run).splitlines()[1]
    assert "None" not in report(run)


def test_long_reason_stands_below_the_table_in_full_and_names_its_log(make: Make, save: Save) -> None:
    reason = "CUDA out of memory | tried to allocate " + "many " * 60 + "bytes"
    run = save([make("compile", status="failed", reason=reason)])
    (run / "cells").mkdir()
    (run / "cells" / "world_model.compile.log").touch()
    lines = write_report(run).splitlines()
    assert f"world_model.compile failed: {reason} (log: cells/world_model.compile.log)" in lines
    assert "memory \\| tried" in report(run)


def test_unsettled_and_cold_are_said(make: Make, make_clocks: Callable[..., dict[str, Any]], save: Save) -> None:
    metrics = make_clocks(2.5) | {"latency": {"cold": True, "settled": False}}
    text = write_report(save([make("compile", metrics=metrics)]))
    assert "world_model.compile: times had not settled" in text
    assert "the last-level cache was flushed before each sample" in text


def test_a_folder_that_cannot_be_written_still_reports(make: Make, save: Save) -> None:
    run = save([make("baseline", 2.5)])
    (run / "report.md").mkdir()  # stands for a read-only folder, which stops no root
    text = write_report(run)
    assert "2.500" in text
    assert text.splitlines()[-1].startswith("report.md, classic.txt and report.html could not be rewritten: ")
    assert not list(run.glob(".*"))


def test_a_write_that_fails_keeps_the_old_report(make: Make, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    run = save([make("baseline", 2.5)])
    (run / "report.md").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    lost = write_report(run).splitlines()[-1]
    assert "could not be rewritten: No space left on device." in lost
    assert lost.endswith(f"python -m profiling.report {run}"), "what to type next"
    assert report(run) == "old"
    assert not list(run.glob(".*"))


def test_run_without_a_finished_cell(save: Save) -> None:
    run = save([])
    assert "No cell has ended yet." in write_report(run)
    assert "No cell has ended yet." in report(run)


def test_bytes_that_are_no_unicode_do_not_stop_it(make: Make, save: Save) -> None:
    run = save([make("compile", status="failed", reason="no file \udcff.pt")])
    assert "no file .pt" in write_report(run)


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run"):
        write_report(tmp_path)
