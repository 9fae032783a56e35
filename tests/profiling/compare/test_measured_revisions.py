"""Two revisions, measured in turns: their cells share blocks, and neighbouring windows are compared."""

import shutil
from pathlib import Path

import pytest
from as_user import QUICK, ROOT
from fake_cells import Plan, rows, two_runs
from planted_repository import commit, git, with_network

from profiling.compare import measure
from profiling.compare.__main__ import main
from profiling.compare.cells import compared_cells, exit_code, read_run
from profiling.results.environment import read_environment
from profiling.results.jsonl import read_records
from profiling.results.verdicts import compare_records
from profiling.run.runner import execute


def compared(runs):
    cells = compared_cells(*(read_run(run.folder) for run in runs))
    return [(cell.variant, cell.verdict) for cell in cells], exit_code(cells, 0.02), cells


def test_the_cells_of_a_name_take_turns_with_each_other(tmp_path):
    plans = {"baseline": Plan(10.0), "v": Plan(4.0)}
    runs, cells = two_runs(tmp_path, plans, plans)
    execute(runs)
    a, b = (rows(run.folder) for run in runs)
    for name in plans:
        assert a[name].turns.began == b[name].turns.began
        assert a[name].turns.beside == (f"{name} of B",)
        assert b[name].turns.beside == (f"{name} of A",)
        pair = compare_records(a[name], b[name])
        assert (pair.in_turns, pair.ratio) == (True, pytest.approx(1.0, abs=0.01))
    pair = compare_records(a["baseline"], a["v"])
    assert (pair.in_turns, pair.ratio) == (False, pytest.approx(2.5, rel=0.01)), "they had no windows side by side"
    assert [read_environment(run.folder).checkout for run in runs] == ["A", "B"]
    order = [name for name, step in cells.log if step == "ready"]
    assert order == ["baseline of A", "baseline of B", "v of A", "v of B"]
    assert cells.held == {}


def test_the_drift_of_the_machine_is_no_difference_and_a_slower_revision_is_found(tmp_path):
    """Both get twice as slow in a minute, which two runs after each other would call a difference."""
    plans = [{name: Plan(ms, drift=1.0) for name, ms in times} for times in ((("baseline", 10.0), ("v", 4.0)),) * 2]
    plans[1]["v"] = Plan(4.8, drift=1.0)
    runs, _ = two_runs(tmp_path, *plans)
    execute(runs)
    verdicts, code, cells = compared(runs)
    assert verdicts == [("baseline", "undecided"), ("v", "slower")], "equal code may differ by more than 2% on a CPU"
    assert cells[0].pair.ratio == pytest.approx(1, abs=0.01)
    assert code == 1
    assert all(cell.pair.in_turns for cell in cells)
    assert cells[1].interval[0] < 1.2 < cells[1].interval[1]


class PreparedError(Exception):
    """Ends a comparison before the first process starts."""


@pytest.fixture
def prepared(monkeypatch):
    """Call `measure` and return the runs that it would execute."""

    def runs_of(*arguments, config_folder=None):
        seen = []

        def execute(runs):
            seen.extend(runs)
            raise PreparedError

        monkeypatch.setattr(measure, "execute", execute)
        with pytest.raises(PreparedError):
            measure.measure(arguments[:2], arguments[2:], config_folder)
        return seen

    return runs_of


def test_a_checkout_with_the_tool_in_it_brings_its_components(tmp_path, monkeypatch, prepared):
    """Steps, metrics and options are those of the working tree, in which the command was started."""
    repository = tmp_path / "repository"
    component, step, metric = (f"conf/{name}.yaml" for name in ("component/net", "step/graphs", "metric/latency"))
    text = "net:\n  module: {{_target_: net.Net, width: {}}}\n  inputs: {{x: {{}}}}\n"
    shutil.copytree(ROOT / "conf", repository / "conf")
    for width in (1, 2):
        replaced = {step: "cuda_graph: {}\n", metric: "latency: {_target_: gone}\n"}
        commit(repository, {component: text.format(width), **replaced})
    for name in (step, metric):
        shutil.copy(ROOT / name, repository / name)
    (repository / component).write_text(text.format(3))
    monkeypatch.chdir(repository)
    monkeypatch.setattr(measure, "CONF", repository / "conf")
    for names, widths in ((("HEAD~1", "HEAD"), [1, 2]), (("HEAD", "."), [2, 3])):
        runs = prepared(*names, "component=[net]", "variant=[compile]", f"hydra.run.dir={tmp_path / str(widths[0])}")
        assert [run.config.components[0].module["width"] for run in runs] == widths
        assert {run.config.metrics["latency"]["_target_"] for run in runs} == {"profiling.metrics.latency.Latency"}


def test_without_component_those_of_the_config_folder_are_measured(tmp_path, monkeypatch, prepared):
    """A checkpoint that git ignores is that of the working directory."""
    repository = tmp_path / "repository"
    with_network(repository, 1, 2)
    yaml = (repository / "component" / "net.yaml").read_text() + "  checkpoint: weights.pt\n"
    for _ in range(2):
        commit(repository, {"component/net.yaml": yaml, ".gitignore": "*.pt\n"})
    (repository / "weights.pt").write_text("")
    monkeypatch.chdir(repository)
    for given, name in (((), "net"), (("component=[world_model]",), "world_model")):
        runs = prepared("HEAD~1", "HEAD", *given, config_folder=Path())
        assert [[spec.name for spec in run.config.components] for run in runs] == [[name]] * 2
        if name == "net":
            checkpoints = [run.config.components[0].checkpoint for run in runs]
            assert checkpoints == [str(repository / "weights.pt")] * 2


def test_two_revisions_of_a_repository(tmp_path, monkeypatch, capsys):
    """The second one multiplies three times as often. What is not committed plays no part."""
    repository = tmp_path / "repository"
    revisions = with_network(repository, 20, 60)
    (repository / "user_net.py").write_text("raise RuntimeError")
    monkeypatch.chdir(repository)
    asked = ("--config-dir=.", "component=[net]", "variant=[baseline]", "hydra.run.dir=runs/x", "seconds=2")
    options = [option for option in QUICK if "max_seconds" not in option and "max_iterations" not in option]
    code = main(["HEAD~1", "HEAD", *asked, *options])
    assert code in (1, 2), "2: other processes took the machine"
    printed = capsys.readouterr()
    assert "[1/1] B (HEAD) · net · baseline: ok" in printed.err
    folders = [repository / "runs" / "x" / name for name in ("A", "B")]
    assert main(["runs/x/A", "runs/x/B"]) == code, "they can be compared again"
    assert capsys.readouterr().out == printed.out
    (cell,) = compared_cells(*map(read_run, folders))
    assert cell.verdict == ("slower" if code == 1 else "undecided")
    assert len({record.turns.began for folder in folders for record in read_records(folder).records}) == 1
    assert cell.pair.ratio > 1.5
    for folder, revision in zip(folders, revisions, strict=True):
        environment = read_environment(folder)
        assert (environment.user_git.revision, environment.user_git.dirty) == (revision, False)
        assert environment.module_git["user_net.Net"].revision == revision
        assert environment.command.startswith("python -m profiling.compare")
        assert (folder / "report.html").is_file()
    assert len(git(repository, "worktree", "list").splitlines()) == 1
