"""Every recipe of conf/variant runs at tiny size on a CPU, or says what it needs that a CPU lacks."""

import importlib.util

import pytest

from profiling.cli.app import CONF

RECIPES = sorted(path.stem for path in (CONF / "variant").glob("*.yaml"))
QUANTISED = {"int8_weights", "int8_dynamic", "fp8_weights", "skinny_int8"}
#: Recipes that run on a CPU. `channels_last_compile` is skipped: the world model has no convolution.
RUN = {"baseline", "compile", "compile_regional", "aot_inductor", *QUANTISED}
NEEDS = ("CUDA device", "torch_tensorrt is not installed", "no 2D or 3D convolution")


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs the extra quant")
def test_every_recipe_that_a_cpu_can_run_runs(profile):
    outcome = profile("component=[world_model]", f"variant=[{','.join(RECIPES)}]")
    records = {variant: record for (_, variant), record in outcome.records.items()}
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
