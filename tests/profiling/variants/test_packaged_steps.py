"""A package can be made after each step that changes a module: no pair of them has to be refused."""

import pytest
import torch
import torch.nn.functional as F
from fixed_component import fixed_component, shipped_recipe
from torch import nn

import profiling
from profiling.cli.groups import step_nodes
from profiling.variants.aot_inductor import exported
from profiling.variants.steps import read_steps

TRANSFORMS = [name for name, step in read_steps(step_nodes()).items() if step.kind == "transform"]
#: The others need a GPU.
ON_CPU = ("channels_last", "fx_passes", "merged_linear", "fold_upsampling")
ON_CPU += ("skinny_int8", "skinny_fp8", "int8_weights", "int8_dynamic", "fp8_weights")


class Net(nn.Module):
    """What each of the steps replaces, in sizes that their kernels take."""

    def __init__(self):
        super().__init__()
        self.grouped, self.folded = nn.Conv2d(32, 32, 3, padding=1, groups=4), nn.Conv2d(32, 32, 3, padding=1)
        self.norm, self.pointwise = nn.GroupNorm(4, 32), nn.Conv2d(32, 256, 1)
        # With 128 inputs torchao takes a scale of the whole tensor for one of blocks, and refuses it.
        self.q, self.k, self.v = (nn.Linear(256, 256) for _ in range(3))

    def forward(self, x):
        x = F.silu(self.norm(self.grouped(x)))
        x = self.pointwise(self.folded(F.interpolate(x, scale_factor=2)))
        rows = F.interpolate(x, (4, 8), mode="bilinear").flatten(2).transpose(1, 2)
        return F.scaled_dot_product_attention(self.q(rows), self.k(rows), self.v(rows))


@pytest.mark.parametrize("step", ON_CPU)
def test_what_a_step_makes_of_a_module_can_be_exported(step):
    (transform,) = shipped_recipe(step).transforms
    if missing := transform.unavailable(torch.device("cpu")):
        pytest.skip(missing)
    x = torch.randn(1, 32, 8, 8)
    with torch.inference_mode():
        net = fixed_component(Net(), x)
        changed = transform.apply(net.module, net).call
        program = exported(changed, [{"x": x}]).program
        torch.testing.assert_close(program.module()(x=x), changed(x=x))


@pytest.mark.gpu
@pytest.mark.parametrize("step", TRANSFORMS)
def test_each_step_is_packaged_on_the_gpu(step, tmp_path):
    recipe = "+".join(dict.fromkeys(["channels_last", step, "aot_inductor"]))
    x = torch.randn(1, 32, 8, 8, device="cuda", dtype=torch.bfloat16)
    module = Net().to("cuda", torch.bfloat16).eval()
    with profiling.prepare(module, {"x": x}, recipe, package=tmp_path / "net.pt2") as prepared:
        prepared(x=x)
    assert (tmp_path / "net.pt2").stat().st_size > 0
