"""Packages that cells share: equal programs, weights and options give one path, a difference gives another."""

import errno

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from profiling.components.spec import PACKAGES_FOLDER
from profiling.variants.packages import CHUNK_BYTES, link_or_copy, new_file, shared_path


class Net(nn.Module):
    def __init__(self, scale=1.0, size=4, form=tuple):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.scale, self.form = nn.Linear(size, size), scale, form
        self.register_buffer("shift", torch.arange(float(size)), persistent=False)

    def forward(self, x):
        return self.form((self.linear(x) * self.scale + self.shift, x + 1))


def path_of(net, options=None, x=None, constants=None):
    x = torch.zeros(2, net.linear.in_features) if x is None else x
    program = torch.export.export(net, (), {"x": x})
    program.constants.update(constants or {})
    return shared_path(program, {"x": x}, options or {"freezing": False}, ".pt2")


def changed(function):
    net = Net()
    with torch.no_grad():
        function(net)
    return net


def large():
    """Weights of several chunks and of a size that is no multiple of 4 bytes, with bytes that change places."""
    values = torch.arange(2 * CHUNK_BYTES + 3, dtype=torch.int32).to(torch.uint8)
    for first, second in ((0, 0), (1, 2), (1, CHUNK_BYTES + 2), (-1, -2)):
        each = values.clone()
        each[first], each[second] = values[second], values[first]
        yield each


def test_equal_programs_share_a_path_and_whatever_differs_gives_another_one(tmp_path, monkeypatch):
    monkeypatch.setenv(PACKAGES_FOLDER, str(tmp_path))
    first = path_of(Net(), {"freezing": False, "a": 1})
    assert first == path_of(Net(), {"a": 1, "freezing": False})
    assert (first.parent, first.suffix) == (tmp_path, ".pt2")
    paths = [
        path_of(Net()),
        path_of(Net(), {"freezing": True}),
        path_of(Net(scale=2.0)),
        path_of(Net(size=8)),
        path_of(Net(), x=torch.zeros(3, 4)),
        path_of(Net(), x=torch.zeros(4, 2).t()),
        path_of(Net().double(), x=torch.zeros(2, 4).double()),
        path_of(Net(form=list)),
        path_of(changed(lambda net: net.linear.weight.view(-1)[-1].add_(1e-3))),
        path_of(changed(lambda net: net.linear.weight.copy_(net.linear.weight.flip(0)))),
        path_of(changed(lambda net: net.shift[1].add_(1e-3))),
        path_of(changed(lambda net: setattr(net.linear.weight, "data", net.linear.weight.t().contiguous().t()))),
        *(path_of(Net(), constants={"8": TwoTensor(torch.zeros(3), torch.full((3,), each))}) for each in (1.0, 2.0)),
        *(path_of(Net(), constants={"large": each}) for each in large()),
    ]
    assert len(set(paths)) == len(paths)
    monkeypatch.delenv(PACKAGES_FOLDER)
    assert path_of(Net()) is None


def test_a_file_is_linked_or_copied_to_another_file_system(tmp_path, monkeypatch):
    made, shared, later = tmp_path / "a" / "Net.pt2", tmp_path / "shared" / "digest.pt2", tmp_path / "b" / "Net.pt2"
    made.parent.mkdir()
    made.write_bytes(b"package")
    for _ in range(2):  # two cells may make the same one
        link_or_copy(made, shared)
    assert shared.samefile(made)
    made.unlink()  # a start keeps its package only until it ends

    def other_file_system(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("os.link", other_file_system)
    link_or_copy(shared, later)
    assert later.read_bytes() == b"package"
    for name in ("Net_2.pt2", "Net_3.pt2"):  # a second file of a name gets a number
        file = new_file(later.parent, "Net.pt2")
        assert file == later.parent / name
        file.touch()
