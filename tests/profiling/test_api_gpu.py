"""From Python on a CUDA device: captured variants of a held module, and captured steps in an application."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import profiling
from profiling.errors import InputError
from profiling.metrics.latency import Latency
from profiling.metrics.memory import Memory
from profiling.metrics.parity import Parity

pytestmark = pytest.mark.gpu
LATENCY = Latency(max_seconds=0.5, warmup_max_seconds=0.5)
QUICK = {
    "metrics": {"parity": Parity(), "latency": LATENCY, "memory": Memory()},
    "ceilings": "off",
    "quiet": True,
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 64, 3, padding=1), nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x):
        hidden = nn.functional.silu(self.first(x))
        return {"picture": self.last(hidden), "parts": [hidden.mean(dim=(2, 3))]}


@pytest.fixture
def module():
    return Net().to("cuda", torch.bfloat16)


def draw(seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return {"x": torch.randn(1, 4, 64, 64, generator=generator, device="cuda", dtype=torch.bfloat16)}


def test_captured_variants_are_correct_and_the_module_stays(module):
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    generators, tf32 = torch.cuda.get_rng_state(), torch.backends.cudnn.allow_tf32
    variants = ["baseline", "compile", "cuda_graph", "compile+cuda_graph", "compile+inductor_graphs"]
    for _ in range(2):  # the second call begins where the first has compiled the same code
        result = profiling.profile(module, draw(0), variants, fps=60, **QUICK)
        ends = {record.variant: (record.status, record.reason) for record in result.records}
        assert ends == dict.fromkeys(variants, ("ok", None))
        assert all(record.parity.passed for record in result.records)
        assert "holds" in str(result)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert module.training
    assert torch.equal(torch.cuda.get_rng_state(), generators)
    assert torch.backends.cudnn.allow_tf32 == tf32


def test_the_generator_of_a_device_that_the_run_is_the_first_to_use():
    script = """import torch, profiling
torch.manual_seed(5)
net, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
torch.manual_seed(5)
profiling.profile(net, {"input": x}, ["baseline"], metrics=["memory"], device="cuda", ceilings="off", quiet=True)
drawn = torch.rand(8, device="cuda")
torch.manual_seed(5)
assert torch.equal(drawn, torch.rand(8, device="cuda"))
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_memory_of_the_copies_is_freed(module):
    profiling.profile(module, draw(0), ["baseline", "cuda_graph"], **QUICK)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    profiling.profile(module, draw(0), ["baseline", "cuda_graph"], **QUICK)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= held + 2**20


@pytest.mark.parametrize(
    "variant", ["baseline", "compile", "cuda_graph", "compile+cuda_graph", "compile+inductor_graphs"]
)
def test_a_prepared_step_follows_its_inputs_and_weights(module, variant):
    module.eval()
    with profiling.prepare(module, draw(0), variant=variant) as step:
        outputs, expected = [], []
        for seed in (1, 2, 3):
            if seed == 3:
                with torch.no_grad():
                    module.last.bias.add_(1)
            inputs = draw(seed)
            outputs.append(step(**inputs))
            with torch.inference_mode():
                expected.append(module(**inputs))
        for output, right in zip(outputs, expected, strict=True):  # all of them: none was overwritten
            torch.testing.assert_close(output, right, rtol=2e-2, atol=2e-2)
        from_host = step(draw(1)["x"].cpu().pin_memory())
        assert from_host["picture"].shape == (1, 3, 64, 64)
        with pytest.raises(InputError, match=r"x is bfloat16 \[1, 4, 32, 32\], it was prepared for bfloat16"):
            step(x=torch.zeros(1, 4, 32, 32, device="cuda", dtype=torch.bfloat16))


def test_steps_are_closed_in_any_order(module):
    module.eval()
    limit = torch._dynamo.config.recompile_limit
    first = profiling.prepare(module, draw(0), variant="compile+cuda_graph")
    second = profiling.prepare(module, draw(0), variant="compile")
    third = profiling.prepare(module, draw(0), variant="cuda_graph", clone=False)
    one, other = third(**draw(1))["picture"], third(**draw(2))["picture"]
    assert one.data_ptr() == other.data_ptr(), "without a copy, the graph's own memory"
    first.close()
    right = module(**draw(1))["picture"]
    torch.testing.assert_close(second(**draw(1))["picture"], right, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(third(**draw(1))["picture"], right, rtol=2e-2, atol=2e-2)
    second.close()
    assert torch._dynamo.config.recompile_limit == limit
    third.close()
