"""ResNet-50 under its loss: published size, loss by hand, gradients; replay of training steps."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from reference_data import captured, relative_error
from test_capturable import OneDeviceMode
from test_flow_matching import tiny_loss

from models.hub import build_resnet_training

transformers = pytest.importorskip("transformers")

TINY = {"num_labels": 10, "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2]}
CONF = Path(__file__).parents[2] / "conf" / "component"


def tiny_step(seed=0):
    torch.manual_seed(seed)
    module = build_resnet_training(**TINY)
    return module, {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 10, (4,))}


def test_the_default_and_the_yaml_are_resnet50():
    node = yaml.safe_load((CONF / "resnet50_training.yaml").read_text())["resnet50_training"]["module"]
    assert node.pop("_target_") == "models.hub.build_resnet_training"
    with torch.device("meta"):
        default, named = build_resnet_training(), build_resnet_training(**node)
    assert sum(p.numel() for p in default.parameters()) == 25_557_032  # published
    assert named.model.config.to_dict() == default.model.config.to_dict()


@pytest.mark.parametrize("train", [True, False])
def test_loss_is_the_mean_cross_entropy(train):
    module, inputs = tiny_step()
    module.train(train)
    with torch.no_grad():
        logits = module.model(pixel_values=inputs["pixel_values"]).logits.double().numpy()
        loss = module(**inputs)
    assert (loss.dtype, loss.shape) == (torch.float32, ())
    log_sum = np.log(np.exp(logits).sum(axis=1))
    expected = (log_sum - logits[np.arange(4), inputs["labels"].numpy()]).mean()
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("how", ["fp32", "bf16 autocast", "bf16"])
def test_a_step_downhill_lowers_the_loss_and_moves_every_parameter(how):
    module, inputs = tiny_step()
    if how == "bf16":
        module.bfloat16()
        inputs["pixel_values"] = inputs["pixel_values"].bfloat16()
    losses = []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for _ in range(8):
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "bf16 autocast"):
            loss = module(**inputs)
        assert loss.dtype == torch.float32
        optimizer.zero_grad()
        loss.backward()
        still = [key for key, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
        assert not still, f"no gradient reaches {still}"
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_folder_brings_its_own_sizes(tmp_path):
    module, inputs = tiny_step()
    module.model.save_pretrained(tmp_path)
    loaded = build_resnet_training(str(tmp_path))
    assert loaded.weights_source == str(tmp_path)
    torch.testing.assert_close(loaded.eval()(**inputs), module.eval()(**inputs))


def test_a_folder_without_the_head_is_refused(tmp_path):
    tiny_step()[0].model.resnet.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"2 weights are missing, for example classifier"):
        build_resnet_training(str(tmp_path))


def test_without_the_library_its_name_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError) as error:
        build_resnet_training()
    assert error.value.name == "transformers"


STEPS = {"resnet": tiny_step, "flow_matching": lambda seed=0: tiny_loss(seed=seed)}


@pytest.mark.parametrize("name", STEPS)
def test_forward_and_backward_stay_on_their_device(name):
    module, inputs = STEPS[name]()
    module.to("meta")
    with OneDeviceMode("meta") as mode:
        module(**{key: value.to("meta") for key, value in inputs.items()}).backward()
    assert mode.operations > 20


def gradients(module, inputs):
    """Return the loss and all gradients in one vector, computed eagerly."""
    loss = module(**inputs)
    actual = torch.autograd.grad(loss, list(module.parameters()))
    return loss.detach(), torch.cat([gradient.flatten() for gradient in actual])


@pytest.mark.gpu
@pytest.mark.parametrize("name", STEPS)
def test_losses_and_gradients_replay(name):
    module, inputs = STEPS[name]()
    module.cuda().train()
    inputs = {key: value.cuda() for key, value in inputs.items()}
    others = {key: value.cuda() for key, value in STEPS[name](seed=1)[1].items()}

    def step():
        module.zero_grad(set_to_none=True)
        loss = module(**inputs)
        loss.backward()
        return loss

    graph, loss = captured(step)
    for key, value in others.items():
        inputs[key].copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    expected_loss, expected = gradients(module, others)
    actual = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-2)
    assert relative_error(actual, expected) < 1e-2
