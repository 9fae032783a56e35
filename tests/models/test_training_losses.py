"""Networks under their losses: the losses against their formulas in float64, and gradients in half precision."""

import numpy as np
import pytest
import torch
from reference_data import as_float32, relative_error, without_gradient
from test_capturable import OneDeviceMode
from torch import nn

from models.flow_matching import FlowMatching, build_flow_matching, flow_matching_inputs
from models.hub import build_resnet_training
from models.initialisation import randomise
from models.world_model import WorldModelParams

pytest.importorskip("transformers")


RESNET = {"num_labels": 10, "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2]}


def resnet(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    module = build_resnet_training(**RESNET).to(dtype)
    return module, {"pixel_values": torch.randn(4, 3, 32, 32, dtype=dtype), "labels": torch.randint(0, 10, (4,))}


def flow_matching(dtype=torch.float32, seed=0):
    module = build_flow_matching(**vars(WorldModelParams.tiny()))
    randomise(module, seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = flow_matching_inputs(module, batch=2, frames=4, generator=generator, device="cpu", dtype=dtype)
    return module.to(dtype), inputs


def wide(tensor):
    return tensor.double().numpy()


def test_resnets_loss_is_the_mean_cross_entropy():
    module, inputs = resnet()
    with torch.no_grad():
        logits, loss = wide(module.model(pixel_values=inputs["pixel_values"]).logits), module(**inputs)
    assert (loss.dtype, loss.shape) == (torch.float32, ())
    log_sum = np.log(np.exp(logits).sum(axis=1))
    assert loss.item() == pytest.approx((log_sum - logits[np.arange(4), inputs["labels"].numpy()]).mean(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_flow_matching_is_its_formula_of_a_mixture_with_noise(dtype):
    """Of a network that answers with set velocities: it sees the mixture, its level, and the controls."""
    (_, inputs), (_, others), given = flow_matching(dtype), flow_matching(dtype, seed=1), []
    answers = others["x"], others["audio"]
    network = nn.Module()
    network.forward = lambda *seen: given.extend(seen) or answers
    loss = FlowMatching(network)(**inputs)
    assert (loss.dtype, loss.shape) == (torch.float32, ())
    pairs, expected = (("x", "noise"), ("audio", "audio_noise")), 0.0
    for answer, seen, (clean, noise) in zip(answers, given, pairs, strict=False):
        start, end = wide(inputs[clean]), wide(inputs[noise])
        assert not np.array_equal(start, end), "noise is no copy"
        expected += np.square(wide(answer) - (end - start)).mean()
        level = wide(inputs["t"]).reshape(*inputs["t"].shape, *(1,) * (seen.ndim - 2))
        rounding = 2 * torch.finfo(dtype).eps
        np.testing.assert_allclose(wide(seen), (1 - level) * start + level * end, rtol=rounding, atol=rounding)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    for actual, key in zip(given[2:], ("t", "mouse", "btn"), strict=True):
        assert actual is inputs[key]


def test_a_folder_brings_its_own_sizes(tmp_path):
    module, inputs = resnet()
    module.model.save_pretrained(tmp_path)
    loaded = build_resnet_training(str(tmp_path))
    torch.testing.assert_close(loaded.eval()(**inputs), module.eval()(**inputs))


@pytest.mark.parametrize("how", ["bf16 autocast", "bf16"])
@pytest.mark.parametrize("make", [resnet, flow_matching])
def test_a_gradient_of_half_precision_reaches_every_parameter_and_stays_on_its_device(make, how):
    module, inputs = make(torch.bfloat16 if how == "bf16" else torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "bf16 autocast"):
        loss = module(**inputs)
    loss.backward()
    assert without_gradient(module) == []
    exact, _ = make()
    expected = exact(**as_float32(inputs))
    expected.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=0.05)
    actual, wanted = (torch.cat([p.grad.flatten().float() for p in each.parameters()]) for each in (module, exact))
    assert relative_error(actual, wanted) < (0.05 if make is flow_matching else 0.5)
    exact.to("meta")
    placed = {key: value.to("meta") for key, value in as_float32(inputs).items()}
    with OneDeviceMode("meta") as mode:
        exact(**placed).backward()
    assert mode.operations > 20
