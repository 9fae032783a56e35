"""Every step and short name runs at tiny size on a CPU, or says what it needs that a CPU lacks."""

import importlib.util

import pytest

from profiling.cli.groups import named_recipes, short_names, step_nodes
from profiling.variants.steps import read_steps

ALONE = [name for name, step in read_steps(step_nodes()).items() if not step.rules.needs]
RECIPES = [*named_recipes(["baseline", *ALONE, *short_names()])]
QUANTISED = {"int8_weights", "int8_dynamic", "fp8_weights", "skinny_int8", "skinny_fp8"}
#: Recipes that run on a CPU. Those with `channels_last` are skipped: the network has no convolution.
RUN = {"baseline", "compile", "regional", "aot_inductor", *QUANTISED}
NEEDS = ("CUDA device", "torch_tensorrt is not installed", "no 2D or 3D convolution", "no graph pass matches")


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs the extra quant")
def test_every_recipe_that_a_cpu_can_run_runs(profile):
    few = ("isolation=none", "metric=[parity,latency]")
    few += ("metric.latency.max_iterations=5", "metric.latency.warmup_max_seconds=0.01")
    # For a single package, compiling headers in advance takes as long as the package.
    few += ("+step.aot_inductor.options={aot_inductor.precompile_headers:false}",)
    outcome = profile("component=[blocks]", f"variant=[{','.join([*RECIPES, 'package_alike'])}]", *few)
    records = {variant: record for (_, variant), record in outcome.records.items()}
    check_shared_package(outcome.folder, records["aot_inductor"], records.pop("package_alike"))
    assert set(records) == set(RECIPES)
    assert {name for name, record in records.items() if record.status == "ok"} == RUN
    for name, record in records.items():
        if name in RUN:
            assert record.parity.passed, name
            # Rounding in compiled code stays below 1e-3. A larger error shows that weights of 8 bits were used.
            assert (record.parity.rel_l2 > 1e-3) == (name in QUANTISED), name
        else:
            assert record.status == "skipped", (name, record.reason)
            assert any(need in record.reason for need in NEEDS), (name, record.reason)


def check_shared_package(folder, made, shared):
    """A cell takes the package of another one with the same program, weights and options."""
    packages = [each for record in (made, shared) for step in record.recipe for each in step.packages]
    assert [each.cached for each in packages] == [False, True]
    assert [each.bytes for each in packages] == [packages[0].bytes] * 2
    assert all((folder / each.file).is_file() for each in packages)
    assert packages[0].file != packages[1].file
    assert not list((folder / "kernels").glob(".*")), "what cells shared is removed"
    assert (made.prepare.cache, made.prepare.graphs, made.prepare.cache_hits) == ("cold", 1, 0)
    assert (shared.prepare.cache, shared.prepare.graphs, shared.prepare.cache_hits) == ("from aot_inductor", 1, 1)
    assert shared.prepare.phases["package"] < made.prepare.phases["package"]
    assert shared.prepare.from_cold > made.prepare.phases["package"]
    assert made.parity.rel_l2 == shared.parity.rel_l2
