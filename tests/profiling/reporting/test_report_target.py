import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from profiling.report.__main__ import main
from profiling.results.records import Record

Make = Callable[..., Record]
Save = Callable[[Sequence[Record]], Path]

ROOT = Path(__file__).parents[3]
WITHOUT_TORCH = """
import runpy, sys
for name in ("torch", "triton", "hydra", "omegaconf"):
    sys.modules[name] = None
sys.argv = ["report", sys.argv[1]]
runpy.run_module("profiling.report", run_name="__main__")
"""


def test_runs_where_torch_cannot_be_imported(three: tuple[Record, ...], save: Save) -> None:
    run = save(three)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(run)], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "compile is fastest" in done.stdout
    assert (run / "report.md").is_file()


def test_terminal_without_unicode_gets_no_traceback(make: Make, save: Save) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "profiling.report", str(save([make("baseline", 2.5)]))],
        cwd=ROOT,
        env={"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert b"2.500 ? 0.019" in done.stdout


def test_no_run_is_one_line_and_exit_code_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        assert main([str(folder)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert len(printed.err.splitlines()) == 1
        assert "no run" in printed.err


@pytest.mark.parametrize(
    ("form", "mark"), [("table", "run: "), ("markdown", "## generic_forward"), ("classic", "* Baseline - WM")]
)
def test_one_format_prints_that_one_and_writes_nothing(
    make: Make, save: Save, capsys: pytest.CaptureFixture[str], form: str, mark: str
) -> None:
    run = save([make("baseline", 2.5)])
    assert main([str(run), "--format", form]) == 0
    assert mark in capsys.readouterr().out
    assert [path.name for path in run.iterdir()] == ["results.jsonl"]


def test_failed_cells_do_not_fail_the_rendering(three: tuple[Record, ...], save: Save) -> None:
    assert main([str(save(three))]) == 0


def test_reporting_imports_neither_torch_nor_what_measures() -> None:
    allowed = (
        *("profiling.results.records", "profiling.results.stats", "profiling.errors", "profiling.reporting"),
        *("profiling.results.frames", "profiling.trace.kernel_classes"),
    )
    for path in [*(ROOT / "profiling" / "reporting").rglob("*.py"), ROOT / "profiling" / "report.py"]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(("import ", "from ")):
                module = line.split()[1]
                assert module.split(".")[0] not in {"torch", "models", "hydra"}, f"{path.name}: {line}"
                assert not module.startswith("profiling") or module.startswith(allowed), f"{path.name}: {line}"
