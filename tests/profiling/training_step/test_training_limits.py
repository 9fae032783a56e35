"""The bytes and FLOPs of a training step, against counts by hand."""

from functools import partial

import pytest
import torch
from torch import nn

from profiling.roofline.work import work_of
from profiling.training_step.options import TrainingOptions
from profiling.training_step.step import TrainingComponent, TrainingStep

ROWS, INPUTS, OUTPUTS = 6, 24, 40
WEIGHT = 4 * INPUTS * OUTPUTS  # bytes
PRODUCT = 2 * ROWS * INPUTS * OUTPUTS  # FLOPs


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, OUTPUTS, bias=False), nn.Linear(OUTPUTS, INPUTS, bias=False)

    def forward(self, x):
        return self.second(self.first(x)).square().mean()


def work(device, make):
    step = TrainingStep(Loss().to(device), make, TrainingOptions()).train()
    inputs = {"x": torch.randn(ROWS, INPUTS, device=device)}
    place = torch.device(device)
    return work_of(TrainingComponent("planted", step, inputs, lambda _: inputs, place, torch.float32, ROWS, "random"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_step_reads_and_writes_weights_and_moments(device):
    counts = work(device, partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    # Forward two products; backward two for the weights, and one for what the second layer was given.
    assert counts.flops["total"] == 5 * PRODUCT
    assert counts.bytes["weights"] == 2 * WEIGHT
    assert counts.bytes["inputs"] == 4 * ROWS * INPUTS
    assert counts.bytes["outputs"] == 4
    assert 0 <= counts.bytes["state_read"] - 2 * WEIGHT <= 4, "momentum, and the learning rate"
    assert counts.bytes["state_written"] == 2 * 2 * WEIGHT, "weights and momentum"
    assert counts.traffic_bytes > counts.bytes["total"], "also gradients"
    two = work(device, partial(torch.optim.AdamW, lr=0.1, fused=device == "cuda"))
    assert 0 <= two.bytes["state_read"] - 4 * WEIGHT <= 32, "two moments, and step numbers"
    assert 0 <= two.bytes["state_written"] - 6 * WEIGHT <= 16
