"""The variant fx_passes+cuda_graph on the GPU, with its target: CLIP text at batch 1 gains 10% over plain capture."""

import pytest
import torch
from fixed_component import shipped_recipe
from torch import nn

from models.clip import build_clip_text, clip_text_inputs
from models.hub import randomise_library
from profiling.components.component import Component
from profiling.components.outputs import relative_l2
from profiling.variants.gains import replay_ms

pytestmark = pytest.mark.gpu


def rewrite():
    (transform,) = shipped_recipe("fx_cuda_graph").transforms
    return transform


def component(module, **inputs):
    def make_inputs(generator):
        return {name: torch.roll(x, 1, -1) for name, x in inputs.items()}

    first = next(iter(inputs.values()))
    return Component("net", module.eval(), inputs, make_inputs, first.device, torch.bfloat16, 1, "random")


def clip_text(dtype, attention):
    pytest.importorskip("transformers")
    module = build_clip_text(attn_implementation=attention).cuda()
    randomise_library(module, 0)
    module = module.to(dtype)
    generator = torch.Generator("cuda").manual_seed(0)
    return component(
        module, **clip_text_inputs(module, batch=1, tokens=77, generator=generator, device="cuda", dtype=dtype)
    )


@pytest.mark.alone
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_clip_text_gains_ten_percent_over_plain_capture(dtype, attention, record_property):
    with torch.inference_mode():
        text = clip_text(dtype, attention)
        transformed = rewrite().apply(text.module, text).call
        plain, passed = replay_ms(text.module, transformed, text.inputs, lambda: lambda: None)
        wide = clip_text(torch.float32, attention)
        wide.module.load_state_dict(text.module.state_dict())
        reference = wide.call()
        eager, rewritten = (relative_l2(module(**text.inputs), reference) for module in (text.module, transformed))
    record_property("plain_ms", plain)
    record_property("passed_ms", passed)
    assert rewritten <= 2 * eager
    assert plain / passed >= 1.10, f"{plain:.4f} ms to {passed:.4f} ms"


def test_the_step_follows_new_inputs_and_explains_its_passes(tmp_path):
    with torch.inference_mode():
        text = clip_text(torch.bfloat16, "sdpa")
        step = shipped_recipe("fx_cuda_graph")(text, tmp_path)
        try:
            for _ in range(2):
                assert relative_l2(step.run(), text.call()) < 0.05
                text.refill(1)
            passes = step.explain()["passes"]
        finally:
            step.close()
    by_name = {each.name: each for each in passes}
    assert [each.name for each in passes] == [type(each).__name__ for each in rewrite().passes]
    assert by_name["FuseParallelLinears"].replaced == 36
    assert by_name["FuseQuickGelu"].replaced == 12
    for each in passes:
        assert each.rel_l2 < 0.05
        assert (each.replay_ms is not None) == (each.replaced > 0)


def test_a_pass_without_replay_time_has_a_reason():
    class Net(nn.Module):
        def forward(self, x):
            return x + torch.tensor(2.0, device=x.device)  # copied from the host, which no graph can hold

    with torch.inference_mode():
        net = component(Net().cuda(), x=torch.ones(3, device="cuda"))
        passes = rewrite().explained(net.module, net)
    folded = next(each for each in passes if each.name == "FoldConstants")
    assert folded.replaced == 1
    assert folded.replay_ms is None
    assert folded.unmeasured
