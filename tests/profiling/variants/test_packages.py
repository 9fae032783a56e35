"""Packages that cells share: equal programs, weights and options give one path, a difference gives another."""

import pytest
import torch
from torch import nn

from profiling.components.spec import PACKAGES_FOLDER
from profiling.variants.packages import fetch, new_file, share, shared_path


class Net(nn.Module):
    def __init__(self, scale=1.0, size=4, form=tuple):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.scale, self.form = nn.Linear(size, size), scale, form
        self.register_buffer("shift", torch.arange(float(size)), persistent=False)

    def forward(self, x):
        return self.form((self.linear(x) * self.scale + self.shift, x + 1))


def exported(net, rows=2, x=None):
    return torch.export.export(net, (torch.zeros(rows, net.linear.in_features) if x is None else x,))


def column_major(net):
    net.linear.weight.data = net.linear.weight.data.t().contiguous().t()
    return net


def changed(net, name):
    with torch.no_grad():
        tensor = net.get_parameter(name) if name.startswith("linear") else net.get_buffer(name)
        tensor.view(-1)[-1] += 1e-3
    return net


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(PACKAGES_FOLDER, str(tmp_path / "packages"))
    return tmp_path / "packages"


def test_equal_programs_share_a_path(folder):
    first, second = (shared_path(exported(Net()), {"freezing": False, "a": 1}, ".pt2") for _ in range(2))
    assert first == second == shared_path(exported(Net()), {"a": 1, "freezing": False}, ".pt2")
    assert first is not None
    assert (first.parent, first.suffix) == (folder, ".pt2")


def test_whatever_differs_gives_another_path(folder):
    options = {"freezing": False}
    paths = [
        shared_path(program, each, ".pt2")
        for program, each in (
            (exported(Net()), options),
            (exported(Net()), {"freezing": True}),
            (exported(Net(scale=2.0)), options),
            (exported(Net(size=8)), options),
            (exported(Net(), rows=3), options),
            (exported(Net().double().float().bfloat16().float()), options),
            (exported(changed(Net(), "linear.weight")), options),
            (exported(changed(Net(), "linear.bias")), options),
            (exported(changed(Net(), "shift")), options),
            (exported(column_major(Net())), options),
            (exported(Net(), x=torch.zeros(4, 2).t()), options),
            (exported(Net(form=list)), options),
            (exported(Net(form=lambda pair: {"a": pair[0], "b": pair[1]})), options),
            (exported(Net(form=lambda pair: {"b": pair[0], "a": pair[1]})), options),
        )
    ]
    assert len(set(paths)) == len(paths)


def test_numbers_inside_a_tensor_subclass_count(folder):
    two = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    program = exported(Net())
    paths = set()
    for number in (1.0, 2.0):
        program.constants["quantised"] = two(torch.zeros(3), torch.full((3,), number))
        paths.add(shared_path(program, {}, ".pt2"))
    assert len(paths) == 2


def test_nothing_is_shared_where_the_run_names_no_folder(monkeypatch):
    monkeypatch.delenv(PACKAGES_FOLDER, raising=False)
    assert shared_path(exported(Net()), {}, ".pt2") is None


def test_what_one_cell_leaves_another_gets(tmp_path):
    made, shared, later = tmp_path / "a" / "Net.pt2", tmp_path / "shared" / "digest.pt2", tmp_path / "b" / "Net.pt2"
    made.parent.mkdir()
    later.parent.mkdir()
    assert not fetch(shared, later)
    made.write_bytes(b"package")
    share(made, shared)
    made.unlink()  # a start keeps its package only until it ends
    assert fetch(shared, later)
    assert later.read_bytes() == b"package"
    assert [each.name for each in (*shared.parent.iterdir(), *later.parent.iterdir())] == ["digest.pt2", "Net.pt2"]


def test_a_second_file_of_a_name_gets_a_number(tmp_path):
    for name in ("Net.pt2", "Net_2.pt2", "Net_3.pt2"):
        file = new_file(tmp_path / "kernels", "Net.pt2")
        assert file == tmp_path / "kernels" / name
        file.touch()
