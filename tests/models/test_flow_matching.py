"""The flow-matching loss against its formula in float64, its convention against the world model's, its gradients."""

import numpy as np
import pytest
import torch
from reference_data import relative_error
from torch import nn

from models.flow_matching import FlowMatching, build_flow_matching, flow_matching_inputs
from models.initialisation import randomise
from models.world_model import WorldModelParams

PARAMS = WorldModelParams.tiny()


def tiny_loss(dtype=torch.float32, seed=0):
    module = build_flow_matching(**vars(PARAMS))
    randomise(module, seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = flow_matching_inputs(module, batch=2, frames=4, generator=generator, device="cpu", dtype=dtype)
    return module.to(dtype), inputs


class Planted(nn.Module):
    """Stands where the world model does: answers with set velocities and keeps what it was given."""

    def __init__(self, *answer):
        super().__init__()
        self.answer = answer
        self.given = ()

    def forward(self, *given):
        self.given = given
        return self.answer


def planted_loss(dtype):
    generator = torch.Generator().manual_seed(3)
    _, inputs = tiny_loss(dtype)
    answer = [torch.randn(inputs[key].shape, generator=generator).to(dtype) for key in ("x", "audio")]
    network = Planted(*answer)
    return FlowMatching(network)(**inputs), network, inputs


def wide(tensor):
    return tensor.double().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_loss_is_its_formula(dtype):
    loss, network, inputs = planted_loss(dtype)
    assert (loss.dtype, loss.shape) == (torch.float32, ())
    expected = sum(
        np.square(wide(answer) - (wide(inputs[noise]) - wide(inputs[clean]))).mean()
        for answer, clean, noise in zip(network.answer, ("x", "audio"), ("noise", "audio_noise"), strict=True)
    )
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_network_sees_the_mixture_and_its_level():
    _, network, inputs = planted_loss(torch.float32)
    noisy, noisy_audio, *rest = network.given
    t = wide(inputs["t"])
    for actual, clean, noise in ((noisy, "x", "noise"), (noisy_audio, "audio", "audio_noise")):
        level = t.reshape(*t.shape, *(1,) * (actual.ndim - 2))
        np.testing.assert_allclose(
            actual, (1 - level) * wide(inputs[clean]) + level * wide(inputs[noise]), rtol=1e-5, atol=1e-6
        )
    for actual, key in zip(rest, ("t", "mouse", "btn"), strict=True):
        assert actual is inputs[key]


@pytest.mark.parametrize("how", ["fp32", "bf16 autocast", "bf16"])
def test_a_gradient_reaches_every_parameter(how):
    module, inputs = tiny_loss(torch.bfloat16 if how == "bf16" else torch.float32)
    exact, _ = tiny_loss()
    expected = exact(**{key: value.float() for key, value in inputs.items()})
    expected.backward()
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "bf16 autocast"):
        loss = module(**inputs)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=0.05)
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key
    actual, wanted = (torch.cat([p.grad.flatten().float() for p in m.parameters()]) for m in (module, exact))
    assert relative_error(actual, wanted) < (1e-6 if how == "fp32" else 0.05)


def test_inputs_follow_their_generator_and_noise_is_no_copy():
    _, inputs = tiny_loss(torch.bfloat16)
    _, same = tiny_loss(torch.bfloat16)
    _, other = tiny_loss(torch.bfloat16, seed=1)
    for key, value in inputs.items():
        assert value.dtype == (torch.float32 if key == "t" else torch.bfloat16)
        assert torch.equal(value, same[key])
        assert not torch.equal(value, other[key])
    for noise, clean in (("noise", "x"), ("audio_noise", "audio")):
        assert inputs[noise].shape == inputs[clean].shape
        assert not torch.equal(inputs[noise], inputs[clean])
