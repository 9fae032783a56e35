"""Forward and backward of the losses in one CUDA graph: what a training step captures."""

import pytest
import torch
from reference_data import relative_error
from test_flow_matching import tiny_loss
from test_resnet_training import tiny_step

STEPS = {"resnet": tiny_step, "flow_matching": lambda seed=0: tiny_loss(seed=seed)}


def gradients(module, inputs):
    """Return the loss and all gradients in one vector, computed eagerly."""
    loss = module(**inputs)
    found = torch.autograd.grad(loss, list(module.parameters()))
    return loss.detach(), torch.cat([gradient.flatten() for gradient in found])


@pytest.mark.gpu
@pytest.mark.parametrize("name", STEPS)
def test_losses_and_gradients_replay(name):
    module, inputs = STEPS[name]()
    module.cuda().train()
    inputs = {key: value.cuda() for key, value in inputs.items()}
    others = {key: value.cuda() for key, value in STEPS[name](seed=1)[1].items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            module(**inputs).backward()
    torch.cuda.current_stream().wait_stream(stream)
    module.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = module(**inputs)
        loss.backward()
    for key, value in others.items():
        inputs[key].copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    expected_loss, expected = gradients(module, others)
    found = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-2)
    assert relative_error(found, expected) < 1e-2
