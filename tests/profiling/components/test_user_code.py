"""The walker that finds the user's line: through frames of torch, of this package and of the standard library."""

import operator
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_map

from profiling.components import user_code
from profiling.components.trees import map_tensors
from profiling.components.user_code import is_user_code, raising_line, running_line, short_path

SITE = sysconfig.get_paths()["purelib"]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/me/net.py", True),
        (f"{SITE}/transformers/models/clip.py", True),
        ("/usr/lib/python3/dist-packages/einops/einops.py", True),
        (f"{SITE}/torch/nn/functional.py", False),
        (f"{SITE}/triton/runtime/jit.py", False),
        (f"{sysconfig.get_paths()['stdlib']}/contextlib.py", False),
        (user_code.__file__, False),
        ("/tmp/torchinductor_me/ab/cab.py", False),
        ("/data/kernels/ab/cab.py", False),  # a cache of inductor that was moved there
        ("<string>", False),
    ],
)
def test_which_files_are_the_users(file, expected, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/data/kernels")
    assert is_user_code(file) is expected


def test_the_running_line_is_the_users_below_frames_of_torch():
    (line,) = tree_map(operator.call, [running_line])  # here
    assert (Path(line.file), line.code) == (Path(__file__), "(line,) = tree_map(operator.call, [running_line])  # here")


def test_the_raising_line_is_the_innermost_of_the_user():
    def fails(tensor):
        return tensor + torch.nn.functional.linear(torch.ones(3), torch.ones(2, 2))

    with pytest.raises(RuntimeError) as caught:
        map_tensors(fails, [torch.ones(2)])
    line = raising_line(caught.value.__traceback__)
    assert line.code == "torch.nn.functional.linear(torch.ones(3), torch.ones(2, 2))"
    assert line.number == fails.__code__.co_firstlineno + 1
    assert str(line).startswith(f"{short_path(__file__, Path.cwd())}:{line.number} (")
    assert raising_line(None) is None
    with pytest.raises(NameError) as caught:
        eval("missing")
    assert raising_line(caught.value.__traceback__.tb_next) is None, "no line of the user is in it"


def test_paths_are_short():
    assert short_path("/home/me/nets/net.py", Path("/home/me")) == "nets/net.py"
    assert short_path(f"{SITE}/transformers/clip.py", Path("/home/me")) == "transformers/clip.py"
    assert short_path("/other/net.py", Path("/home/me")) == "/other/net.py"
