"""Imports run downward only, reporting needs no torch, networks know nothing of the harness."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the bottom up; a module may import from its own row and from rows above it in this list.
LAYERS = (
    ("profiling.errors",),
    (
        "profiling.core.stats",
        "profiling.core.rounds",
        "profiling.core.speedup",
        "profiling.core.records",
        "profiling.core.job",
        "profiling.core.trees",
        "profiling.core.distance",
        "profiling.core.writes",
        "profiling.core.git",
        "profiling.core.memory",
        "profiling.core.garbage",
        "profiling.core.nvml",
        "profiling.core.folder",
        "profiling.core.checkpoints",
        "profiling.core.inputs",
        "profiling.core.weights",
        "profiling.core.config",
        "profiling.frames",
    ),
    (
        "profiling.core.components",
        "profiling.core.reference",
        "profiling.core.graphs",
        "profiling.core.building",
        "profiling.core.environment",
    ),
    ("profiling.transforms", "profiling.tracing"),
    ("profiling.variants",),
    ("profiling.metrics", "profiling.calibration", "profiling.limits"),
    ("profiling.inside",),
    (
        "profiling.core.probe",
        "profiling.core.cell",
        "profiling.core.forward",
        "profiling.calibration.cell",
        "profiling.training",
        "profiling.loop",
        "profiling.core.tasks",
        "profiling.core.worker",
        "profiling.core.isolation",
        "profiling.core.execution",
        "profiling.core.progress",
        "profiling.core.outcome",
        "profiling.core.left_behind",
        "profiling.core.runner",
        "profiling.reporting",
        "profiling.comparison",
    ),
    ("profiling.app", "profiling.targets"),
    (
        "profiling.generic_forward",
        "profiling.shape_sweep",
        "profiling.training_step",
        "profiling.launch_overhead",
        "profiling.realtime",
        "profiling.report",
        "profiling.compare",
        "profiling.history",
        "profiling.checkpoints",
    ),
)


def rank(module: str) -> int:
    ranks = [
        (len(prefix), level)
        for level, row in enumerate(LAYERS)
        for prefix in row
        if module == prefix or module.startswith(prefix + ".")
    ]
    assert ranks, f"{module} stands in no layer: add it to LAYERS"
    return max(ranks)[1]


def modules(package: str) -> list[tuple[str, Path]]:
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
    return found


PACKAGES = ("profiling", "profiling.core")


@pytest.mark.parametrize(("module", "path"), [m for m in modules("profiling") if m[0] not in PACKAGES])
def test_imports_run_downward(module, path):
    for imported in imports(path):
        if imported.startswith("profiling.") and imported not in PACKAGES:
            assert rank(imported) <= rank(module), f"{module} imports {imported}, which stands above it"


@pytest.mark.parametrize(("module", "path"), [*modules("profiling/reporting"), *modules("profiling/comparison")])
def test_reporting_never_measures(module, path):
    for imported in imports(path):
        assert imported.split(".")[0] != "torch"
        assert not imported.startswith(("profiling.metrics", "profiling.variants", "profiling.tracing"))


@pytest.mark.parametrize(("module", "path"), modules("models"))
def test_networks_know_no_harness(module, path):
    assert not {name.split(".")[0] for name in imports(path)} & {"profiling", "hydra", "omegaconf"}


def test_only_targets_and_one_file_know_hydra():
    targets = {path.stem for path in (ROOT / "conf").glob("*.yaml")}
    allowed = {"profiling.app", "profiling.core.config", *(f"profiling.{target}" for target in targets)}
    roots = {module: {name.split(".")[0] for name in imports(path)} for module, path in modules("profiling")}
    assert {module for module, names in roots.items() if names & {"hydra", "omegaconf"}} <= allowed


@pytest.mark.parametrize(
    "module",
    [
        "profiling.report",
        "profiling.compare",
        "profiling.history",
        "profiling.generic_forward",
        "profiling.shape_sweep",
        "profiling.realtime",
        "profiling.core.runner",
    ],
)
def test_torch_is_not_imported_by(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
