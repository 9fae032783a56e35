"""Imports run downward, what reads results needs no torch, networks know no harness; docs/architecture.md is right."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from as_user import OUTSIDE, QUICK, ROOT

import profiling.generic_forward
from profiling.cli.app import launch

_READERS = {"errors", "results"}
_SHARED = {*_READERS, "machine", "components"}
_EXECUTION = {*_SHARED, "graphs", "fx_passes", "trace"}
_MEASUREMENT = {*_EXECUTION, "variants", "metrics", "roofline"}
_TARGET = {*_MEASUREMENT, "run", "cli"}

# What each folder (or single file) of profiling/ may import besides itself.
RULES: dict[str, set[str]] = {
    "errors": set(),
    "results": {"errors"},
    "report": _READERS,
    "compare": {*_READERS, "report", "components", "run", "cli"},  # it may measure revisions first
    "history": {*_READERS, "report", "compare"},
    "machine": _READERS,
    "components": {*_READERS, "machine"},
    "graphs": _SHARED,
    "trace": _SHARED,
    "fx_passes": _SHARED,
    "variants": _EXECUTION,
    "roofline": {*_EXECUTION, "variants"},
    "metrics": {*_EXECUTION, "variants"},
    "run": _MEASUREMENT,
    "cli": {*_MEASUREMENT, "run", "report"},
    "checkpoints": _SHARED,
    "generic_forward": _TARGET,
    "shape_sweep": _TARGET,
    "realtime": {*_TARGET, "report"},
    "training_step": _TARGET,
    "launch_overhead": _TARGET,
    "tune": {*_TARGET, "report"},
    "api": {*_TARGET, "report"},
}
WITHOUT_TORCH = (
    "results",
    "report",
    "compare",
    "history",
    "cli",
    "checkpoints",
    "generic_forward",
    "shape_sweep",
    "tune",
)


def files(package: str) -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


@cache
def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(str(node.module))
            names |= {f"{node.module}.{alias.name}" for alias in node.names}  # some of them are modules
    return names


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def test_imports_run_downward():
    for path in files("profiling"):
        if path.name != "__init__.py":
            folder = path.parts[1].removesuffix(".py")
            used = {name.split(".")[1] for name in imports(path) if name.startswith("profiling.")}
            assert used <= {folder, *RULES[folder]}, path


def test_networks_do_not_import_the_harness():
    assert [path for path in files("models") if packages(path) & {"profiling", "hydra", "omegaconf"}] == []


def test_networks_import_in_one_direction_and_kernels_know_none():
    """Imports inside functions count too."""
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): imports(path) for path in files("models")}
    used = {name: found & names.keys() for name, found in names.items()}
    assert "models.kernels.resize_triton" in used["models.kernels.resize"], "inside a function, from the package"
    for name, found in used.items():
        assert not name.startswith("models.kernels") or all(each.startswith("models.kernels") for each in found), name
    list(TopologicalSorter(used).static_order())  # raises CycleError


def test_the_harness_does_not_import_the_networks():
    assert [path for path in files("profiling") if "models" in packages(path)] == []


def test_only_targets_cli_and_instantiate_import_hydra():
    for path in files("profiling"):
        target = (ROOT / "conf" / f"{path.parts[1].removesuffix('.py')}.yaml").exists()
        if not (target or path.parts[1] == "cli" or path.name == "instantiate.py"):
            assert not packages(path) & {"hydra", "omegaconf"}, path


def test_a_run_is_started_and_read_without_torch():
    """The process that starts cells, and every reader of results, imports no torch."""
    modules = [
        ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in files("profiling")
        if path.parts[1].removesuffix(".py") in WITHOUT_TORCH and path.parts[1] != "profiling"
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


#: Words of the networks that this repository ships.
_OF_ONE_NETWORK = re.compile(r"(?i)world|picture|mouse|\bbtn\b|\bsound(?!s\b)")


def test_the_harness_names_no_network():
    """Code, its names and its texts; not docstrings, which may give an example."""
    for path in files("profiling"):
        nodes = list(ast.walk(parsed(path)))
        docstrings = {
            id(node.body[0].value)
            for node in nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        words = {
            value
            for node in nodes
            for _, value in ast.iter_fields(node)
            if isinstance(value, str) and id(node) not in docstrings
        }
        found = [word for word in words if _OF_ONE_NETWORK.search(word)]
        assert found == [], path


def drawn():
    """Return {hop: (file, function)} of the page."""
    section = (ROOT / "docs/architecture.md").read_text().split("\n## How a cell is run\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \| `(\w+)` \|", section, re.MULTILINE)
    return {int(hop): (str(ROOT / "profiling" / file), function) for hop, file, function in rows}


def calls_of(wanted, run):
    """Return the calls of these functions by `run`, in their order."""
    called = []

    def note(frame, event, _):
        key = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and key in wanted:
            called.append(key)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_cell_takes_the_hops_of_the_page_in_their_order(isolation, tmp_path, monkeypatch):
    hops = drawn()
    assert list(hops) == list(range(1, len(hops) + 1))
    assert len(hops) <= 12
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{OUTSIDE}")
    given = ("component=[net]", "variant=[baseline]", f"isolation={isolation}", f"hydra.run.dir={tmp_path / 'run'}")
    monkeypatch.setattr(sys, "argv", ["-", f"--config-dir={OUTSIDE}", *QUICK, *given])
    codes = []
    run = lambda: codes.append(launch("generic_forward", profiling.generic_forward.run))  # noqa: E731
    called = iter(calls_of({*hops.values()}, run))
    assert codes == [0]
    for hop, at in hops.items():  # the probe takes some of them before
        if hop not in ((9, 10) if isolation == "process" else (5, 6, 7, 8)):
            assert at in called, f"hop {hop} follows the one before it"
