"""What a rehearsal finds on a CPU, by planted faults on known lines, and what it must not find."""

import operator

import pytest
import torch

from profiling.graphs.rehearsal import rehearsing

WEIGHT = torch.ones(8)
POSITIONS = torch.tensor([2, 0, 1])


def made_here_used_there(x):
    ramp = torch.arange(8)  # the line that is named
    return x * ramp


FAULTS = {
    "sync": {
        "item": lambda x: x * 2 if x.sum().item() > 0 else x,
        "truth": lambda x: x * 2 if x.sum() > 0 else x,
        "on the CPU": lambda x: x.cpu(),
        "to the CPU": lambda x: x.to("cpu"),
        "numpy": lambda x: x.detach().numpy(),
        "values": lambda x: x.tolist(),
    },
    "data-dependent shape": {
        "mask": lambda x: x[x > 0],
        "write by mask": lambda x: operator.setitem(x * 2, x > 0, x.flatten()),
        "nonzero": lambda x: torch.where(x > 0),
    },
    "host tensor": {
        "host tensor": lambda x: x * torch.arange(8),
        "sum of host tensors": lambda x: torch.cat([x, (torch.zeros(1, 8) + 1) * 3]),
        "host scalar that is moved": lambda x: x * torch.tensor(2.0).to(x.device),
        "made here, used there": made_here_used_there,
    },
}
PLANTED = [pytest.param(fault, call, id=name) for fault, calls in FAULTS.items() for name, call in calls.items()]


@pytest.mark.parametrize(("fault", "call"), PLANTED)
@pytest.mark.parametrize("inference", [True, False], ids=["inference", "autograd"])
def test_a_planted_fault_is_found_with_its_line(fault, call, inference):
    x = torch.ones(2, 8)  # made inside, it would be a tensor of the host
    with torch.inference_mode(inference), rehearsing() as rehearsal:
        call(x)
    number = call.__code__.co_firstlineno + (call is made_here_used_there)
    assert {(found.fault, found.line and found.line.number) for found in rehearsal.findings} == {(fault, number)}


def clean(x):
    hidden = torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]
    scaled = hidden * torch.arange(8, device=x.device) * torch.tensor(2.0)  # a scalar goes into the kernel
    sizes = torch.tensor([2, 4]).prod().item() + torch.linspace(0, 1, 4).tolist()[0]  # never on the device
    scaled[:, POSITIONS] = scaled[:, POSITIONS + 1]  # integers: a fixed shape
    (scaled > 2)[:, POSITIONS] = True  # the value is a bool, not the index
    scaled[scaled > 2] = 0.0  # masked_fill
    return scaled * WEIGHT + x.new_zeros(8) + torch.zeros_like(x) + sizes


@pytest.mark.parametrize("inference", [True, False], ids=["inference", "autograd"])
def test_nothing_is_found_in_what_a_graph_can_replay_and_the_call_returns_the_same(inference):
    x = torch.randn(2, 8)
    with torch.inference_mode(inference):
        expected = clean(x)
        with rehearsing() as rehearsal:
            watched = clean(x)
        assert torch.equal(watched, expected)
    assert rehearsal.findings == []
