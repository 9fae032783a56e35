import pytest
import torch
from planted import Net, applied, calls, normal
from torch.nn import functional as F

from profiling.fx_passes.folding import DropNoOps


def idle(self, x):
    y = F.dropout((x * 2).contiguous().view(3, 4).reshape(3, 4), 0.5, self.training)
    return y.to(torch.float64).clone().expand(3, 4).detach()[:].transpose(0, 0) + 1


def test_what_changes_nothing_is_dropped():
    traced, counts = applied([DropNoOps()], Net(idle), x=normal(3, 4))
    assert counts == [10]
    assert calls(traced) == {"mul": 1, "add": 1}


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: x.t().contiguous() + 1,
        lambda self, x: x.float() + 1,
        lambda self, x: x[1:] + 1,
        lambda self, x: x.flip(0) + 1,
        lambda self, x: x[:2] + x[1:],
        lambda self, x: F.dropout(x, 1.0, training=True),
    ],
    ids=["layout", "dtype", "part", "order", "offset", "dropout"],
)
def test_what_changes_something_stays(forward):
    assert applied([DropNoOps()], Net(forward), x=normal(3, 4))[1] == [0]


def kept_apart(self, x):
    y = x + 1
    z = y.clone()
    z[0] = 5
    return y + z


def original_is_written(self, x):
    y = x + 1
    z = y.clone()
    y[0] = 5
    return y + z


@pytest.mark.parametrize("forward", [kept_apart, original_is_written], ids=lambda f: f.__name__)
def test_a_copy_of_memory_that_is_written_to_stays(forward):
    assert applied([DropNoOps()], Net(forward), x=normal(3, 4))[1] == [0]


def test_outputs_do_not_become_inputs_constants_or_each_other():
    def forward(self, x):
        y = x + 1
        return x.clone(), self.table.clone().view(2), y.clone(), y.clone()

    table = torch.ones(1, 2)
    x = normal(3, 4)
    traced, counts = applied([DropNoOps()], Net(forward, table=table), x=x)
    assert counts == [1]
    memory = [t.data_ptr() for t in (*traced(x=x), x, table)]
    assert len(set(memory)) == len(memory)
