"""Components from diffusers and transformers: sizes, sensitivity, state, what a capture needs, a run."""

import functools
import sys

import pytest
import torch
from as_user import command, finished
from reference_data import relative_error
from test_capturable import OneDeviceMode
from test_conf import composed
from torch.utils._pytree import tree_leaves

from profiling.cli.config import read_config
from profiling.components.build import build
from profiling.components.instantiate import instantiate
from profiling.components.spec import Settings
from profiling.graphs import CudaGraphed
from profiling.results.jsonl import read_records

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

#: Parameters as published; the decoders without their encoders, Moshi without Mimi.
PARAMETERS = {
    "sd_turbo_unet": 865_910_724,
    "sd_vae_decoder": 49_490_199,
    "wan_1_3b_step": 1_418_996_800,
    "wan_vae_decoder": 73_295_603,
    "llama_1b_step": 1_235_814_400,
    "moshi_step": 7_687_729_152,
}
NAMES = list(PARAMETERS)
#: Modules with state, and a buffer of it that a call reads.
STATE = {"wan_vae_decoder": "features_2", "llama_1b_step": "keys_0", "moshi_step": "values_1"}


#: Of Moshi's decoders, whose second layer takes as long to trace as the first.
ONE_LAYER = [f"component.moshi_step.tiny.module.{each}num_hidden_layers=1" for each in ("", "depth_decoder_config.")]


def spec_of(name, *overrides):
    (spec,) = read_config(composed(f"component=[{name}]", *overrides)).components
    return spec


def component(name, dtype=torch.float32, device="cpu", scale="tiny", overrides=()):
    """Return a component as a cell builds it."""
    settings = Settings(device=device, dtype=str(dtype).removeprefix("torch."), scale=scale)
    return build(spec_of(name, *overrides).at(scale), settings).cast("run").component(seed=0)


def call(component, **changes):
    """Return the outputs of the first call after a reset."""
    component.reset()
    return outputs_of(component, **changes)


def outputs_of(component, call=None, **changes):
    """Return the floating-point outputs of a call in one vector."""
    with torch.inference_mode():
        outputs = tree_leaves((component.module if call is None else call)(**{**component.inputs, **changes}))
    return torch.cat([output.flatten().float() for output in outputs if output.is_floating_point()])


tiny = functools.cache(component)


@pytest.mark.parametrize("name", NAMES)
def test_full_size_is_the_published_one(name):
    with torch.device("meta"):
        module = instantiate(spec_of(name).module, name)
    assert sum(parameter.numel() for parameter in module.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_output_depends_on_every_input(name):
    made = tiny(name)
    expected = call(made)
    fresh = made.make_inputs(torch.Generator().manual_seed(1))
    for key in made.inputs:
        assert relative_error(call(made, **{key: fresh[key]}), expected) > 0.05, key


@pytest.mark.parametrize("name", STATE)
def test_a_call_reads_and_changes_its_state_and_reset_restores_it(name):
    made = tiny(name)
    first, second = call(made), outputs_of(made)
    assert relative_error(second, first) > 0.01, "the first call left something behind"
    made.reset()
    made.module.get_buffer(STATE[name]).mul_(-1)
    assert relative_error(outputs_of(made), first) > 1e-3
    torch.testing.assert_close(call(made), first)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_stays_near_fp32_keeps_constants_and_stays_on_its_device(name):
    half = component(name, torch.bfloat16)
    assert relative_error(call(half), call(tiny(name))) < 0.1
    precise = {key for key, tensor in half.module.state_dict(keep_vars=True).items() if tensor.dtype == torch.float32}
    precise |= {key for key, tensor in half.module.named_buffers() if tensor.dtype == torch.float32}
    kinds = {"wan_1_3b_step": ("rope", "time_embedder", "scale_shift_table", "norm2"), "llama_1b_step": ("inv_freq",)}
    for kind in kinds.get(name, ()):
        assert any(kind in key for key in precise), kind
    assert not any("features" in key or "keys_" in key for key in precise), "state has the dtype of the run"
    module = half.module.to("meta")
    with torch.no_grad(), OneDeviceMode("meta") as mode:
        module(**{key: value.to("meta") for key, value in half.inputs.items()})
    assert mode.operations > 20


@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
@pytest.mark.parametrize("name", NAMES)
def test_compiles_into_one_graph(name, backend):
    torch._dynamo.reset()
    made = component(name, overrides=ONE_LAYER if name == "moshi_step" else ())
    expected = call(made)
    compiled = torch.compile(made.module, fullgraph=True, backend=backend)
    made.reset()
    torch.testing.assert_close(outputs_of(made, compiled), expected, rtol=1e-3, atol=1e-3)
    made.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        torch.testing.assert_close(outputs_of(made, compiled), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_run_of_all_of_them(tmp_path):
    folder = tmp_path / "run"
    few = ("isolation=none", "variant=[baseline]", "metric=[parity,latency]")
    few += ("metric.latency.max_iterations=5", "metric.latency.warmup_max_seconds=0.01")
    done = finished(command(folder, f"component=[{','.join(NAMES)}]", *few), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {record.component: record for record in read_records(folder).records}
    assert set(records) == set(NAMES)
    assert all(record.parity.passed for record in records.values())


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_replay_gives_the_numbers_of_eager_and_follows_its_state(name):
    made = component(name, torch.bfloat16, "cuda")
    first, second = call(made), outputs_of(made)
    with torch.inference_mode():
        graphed = CudaGraphed(made.module, keep_state=made.keep_state)
        graphed(**made.inputs)
    try:
        made.reset()
        assert relative_error(outputs_of(made, graphed), first) < 1e-2
        assert relative_error(outputs_of(made, graphed), second) < 1e-2
    finally:
        graphed.clear()


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_is_right_at_full_size(name, tmp_path):
    folder = tmp_path / "run"
    options = [f"component=[{name}]", "variant=[baseline,compile,cuda_graph,compile+cuda_graph]", "dtype=bfloat16"]
    options += ["scale=full", "ceilings=off", "metric=[parity,latency]"]
    quick = ["metric.latency.max_seconds=2", "metric.latency.warmup_max_seconds=1", "compile_cache=shared"]
    done = finished(
        [sys.executable, "-m", "profiling.generic_forward", f"hydra.run.dir={folder}", *options, *quick], tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for record in read_records(folder).records:
        assert record.status == "ok", record.reason
        assert 0 < record.parity.eager_rel_l2 < 0.15, "the most is 0.104, of moshi_step"


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_at_full_size_an_input_moves_the_output_more_than_rounding_does(name):
    made = component(name, torch.bfloat16, "cuda", "full")
    expected = call(made)
    assert torch.isfinite(expected).all()
    inputs = made.make_inputs(torch.Generator("cuda").manual_seed(1))
    for key in made.inputs:
        assert relative_error(call(made, **{key: inputs[key]}), expected) > 0.03, key
