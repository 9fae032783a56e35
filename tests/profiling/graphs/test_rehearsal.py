"""What a rehearsal finds on a CPU, by planted faults on known lines, and what it must not find."""

import sys

import pytest
import torch

from profiling.graphs.rehearsal import rehearsing

WEIGHT = torch.ones(8)
POSITIONS = torch.tensor([2, 0, 1])


def line() -> int:
    """Return the number of the line that calls this."""
    return sys._getframe(1).f_lineno


def item(x):
    return line(), x * 2 if x.sum().item() > 0 else x


def truth(x):
    return line(), x * 2 if x.sum() > 0 else x


def on_cpu(x):
    return line(), x.cpu()


def to_cpu(x):
    return line(), x.to("cpu")


def numpy(x):
    return line(), x.detach().numpy()


def values(x):
    return line(), x.tolist()


def mask(x):
    return line(), x[x > 0]


def write_by_mask(x):
    where, new = line(), x * 2
    new[x > 0] = x.flatten()
    return where + 1, new


def nonzero(x):
    return line(), torch.where(x > 0)


def host_tensor(x):
    return line(), x * torch.arange(8)


def sum_of_host(x):
    return line(), torch.cat([x, (torch.zeros(1, 8) + 1) * 3])


def host_scalar_is_moved(x):
    return line(), x * torch.tensor(2.0).to(x.device)


def made_here_used_there(x):
    where, ramp = line(), torch.arange(8)
    return where, x * ramp


FAULTS = {
    "sync": (item, truth, on_cpu, to_cpu, numpy, values),
    "data-dependent shape": (mask, write_by_mask, nonzero),
    "host tensor": (host_tensor, sum_of_host, host_scalar_is_moved, made_here_used_there),
}


PLANTED = [pytest.param(fault, call, id=call.__name__) for fault, calls in FAULTS.items() for call in calls]


@pytest.mark.parametrize(("fault", "call"), PLANTED)
@pytest.mark.parametrize("inference", [True, False], ids=["inference", "autograd"])
def test_a_planted_fault_is_found_with_its_line(fault, call, inference):
    x = torch.ones(2, 8)  # made inside, it would be a tensor of the host
    with torch.inference_mode(inference), rehearsing() as rehearsal:
        number, _ = call(x)
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
def test_nothing_is_found_in_what_a_graph_can_replay(inference):
    x = torch.ones(2, 8)
    with torch.inference_mode(inference), rehearsing() as rehearsal:
        clean(x)
    assert rehearsal.findings == []


def test_a_watched_call_returns_what_it_returns_unwatched():
    x = torch.randn(2, 8)
    with torch.inference_mode():
        expected = clean(x)
        with rehearsing():
            assert torch.equal(clean(x), expected)
