"""Ceilings of the CPU against numpy, what they say of planted modules, and the cache that remembers them."""

import ast
import dataclasses
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
import timeit
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
import torch
from fixed_component import Net, fixed_component
from hand_made_ceilings import ceilings_of
from msgspec.structs import replace

from profiling.components.spec import ComponentSpec, Settings
from profiling.machine import ceilings as ceilings_cache
from profiling.machine.ceilings import METHOD_FILES, cache_folder, kept_ceilings
from profiling.machine.run_queue import RUN_PROCESS
from profiling.results.environment import Device, Environment, read_environment
from profiling.roofline import measure_ceilings as measuring
from profiling.roofline.measure_ceilings import measure_ceilings
from profiling.roofline.section import call_roofline
from profiling.run import environment as of_run
from profiling.run.job import FORWARD, Job
from profiling.run.probe import probe

KNOWN = replace(ceilings_of(1e9), bandwidth=((1024, 4e9), (2**20, 2e9)), replay_us=7.5)
#: Modules that read a trace, or hold a result: nothing that is timed.
HOLDERS = {"ceilings", "environment", "events", "explanations"}
KEY = {"device": "this one", "threads": 1}

#: The same two measurements without torch, on one thread.
BY_NUMPY = """
import json, timeit
import numpy as np
source = np.ones(2**25)
target = np.empty_like(source)
square = np.random.default_rng(0).standard_normal((768, 768), dtype=np.float32)
product = np.empty_like(square)
def fastest(call, times):
    return min(timeit.repeat(call, number=1, repeat=times))
copied = 2 * source.nbytes / fastest(lambda: np.copyto(target, source), 15)
multiplied = 2 * 768**3 / fastest(lambda: np.matmul(square, square, out=product), 40)
print(json.dumps([copied, multiplied]))
"""


def measured():
    return measure_ceilings(torch.device("cpu"), torch.float32, threads=1, tf32=False)


@pytest.fixture(scope="module")
def ceilings():
    threads = torch.get_num_threads()
    found = measured()
    assert torch.get_num_threads() == threads
    return found


def over_numpys(found):
    """Return by how much copying and multiplying are faster than those of numpy, on one thread each."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", BY_NUMPY], env=environment, capture_output=True, check=True)
    copied, multiplied = json.loads(done.stdout)
    return found.copy_bytes_per_s / copied, found.matmul_flops_per_s / multiplied


def test_the_probe_waits_until_the_run_imports_nothing_before_it_measures(monkeypatch):
    compute = "import time\nuntil = time.monotonic() + 1.5\nwhile time.monotonic() < until: pass"
    with subprocess.Popen([sys.executable, "-c", compute]) as busy:
        of_run.wait_until_idle()
        assert busy.poll() is None, "it is no process of a run"
        monkeypatch.setenv(RUN_PROCESS, str(os.getpid()))
        time.sleep(0.2)  # its interpreter has started
        of_run.wait_until_idle()
        assert busy.poll() is not None
    monkeypatch.setattr(of_run, "IDLE_SECONDS", 0.3)
    with subprocess.Popen([sys.executable, "-c", compute]) as busy:
        time.sleep(0.2)
        of_run.wait_until_idle()
        assert busy.poll() is None, "not for ever"


def test_they_are_numpys_within_a_factor_of_two(ceilings):
    """Up to four times, since another program may take the machine during one of the two."""
    found, ratios = ceilings, over_numpys(ceilings)
    for _ in range(3):
        if not all(0.5 < ratio < 2 for ratio in ratios):
            found = measured()
            ratios = over_numpys(found)
    assert all(0.5 < ratio < 2 for ratio in ratios), ratios
    assert 0 < found.launch_us < 100
    assert found.flops_per_s == max(found.matmul_flops_per_s, found.conv_flops_per_s)
    assert replace(found, conv_flops_per_s=None).flops_per_s == found.matmul_flops_per_s
    assert found.other_flops_per_s.keys() == {"bfloat16", "int8"}
    assert found.flops_ceiling("bfloat16") == found.other_flops_per_s["bfloat16"]
    assert found.flops_ceiling("int8") == max(found.flops_per_s, found.other_flops_per_s["int8"])
    assert found.flops_ceiling("float32") == found.flops_ceiling("float64") == found.flops_ceiling(None)
    assert (found.gap_us, found.replay_us) == (None, None)
    assert [size for size, _ in found.bandwidth] == sorted(size for size, _ in found.bandwidth)
    assert found.bytes_per_s(1e12) == found.bandwidth[-1][1]
    assert found.bytes_per_s(1) == max(rate for _, rate in found.bandwidth)


def test_a_device_without_8_bit_products(monkeypatch):
    for name, few in (("SIZES", {"cpu": (2**18,)}), ("WIDTHS", (256,)), ("CHANNELS", (64,)), ("CPU_SECONDS", 1e-3)):
        monkeypatch.setattr(measuring, name, few)
    monkeypatch.setattr(torch.ops.aten, "_int_mm", Mock(side_effect=RuntimeError("not implemented for 'Char'")))
    found = measured()
    assert found.other_flops_per_s.keys() == {"bfloat16"}
    assert found.flops_ceiling("int8") == found.flops_per_s


def dispatches(self, x):
    for _ in range(300):
        x = x.neg().abs()
    return x


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("forward", "size", "bound", "operator"),
    [
        (lambda self, x: x.neg().neg_().neg_().neg_(), (2**22,), "memory bandwidth", "aten::neg"),
        (lambda self, x: x.mm(self.weight).mm(self.weight), (1024, 1024), "compute", "aten::mm"),
        (dispatches, (8,), "host", ""),
        (lambda self, x: x.sort().values, (2**20,), "reductions", "aten::sort"),  # far more than reading takes
    ],
    ids=["memory", "compute", "host", "slow"],
)
@pytest.mark.usefixtures("one_thread")
@torch.inference_mode()
def test_what_bounds_a_module_of_a_known_class(ceilings, forward, size, bound, operator):
    planted, seen = fixed_component(Net(forward, weight=torch.randn(1024, 1024) / 32), x=torch.randn(*size)), []
    for _ in range(6):  # beside other programs a single measurement may be far off
        wall_ms = 1e3 * statistics.median(timeit.repeat(planted.call, number=1, repeat=5))
        seen.append(call_roofline(planted, planted.call, ceilings, wall_ms, fused=False))
        if (seen[-1].bound or "").startswith(bound):
            break
    found = any((section.bound or "").startswith(bound) for section in seen)
    if ceilings.disturbed and not found:
        pytest.skip("other processes ran while the ceilings were measured")
    assert found, seen
    assert not operator or any(operator in line for line in seen[-1].evidence), seen[-1].evidence


@pytest.fixture
def measure():
    return Mock(return_value=KNOWN)


def test_disturbed_ceilings_are_used_and_not_cached(tmp_path):
    measured = [replace(KNOWN, lost_share=share, disturbed=share > 0.1) for share in (0.4, 0.4, 0.02)]
    found = [kept_ceilings(KEY, iter([ceilings]).__next__, tmp_path) for ceilings in measured]
    assert found == measured
    assert kept_ceilings(KEY, iter(()).__next__, tmp_path) == found[-1], "undisturbed ceilings are kept"


@pytest.mark.parametrize("text", ["", "[]", '{"key": 1}', "\x00\xff", "without launches"])
def test_a_damaged_file_is_measured_again_and_rewritten(measure, tmp_path, text):
    kept_ceilings(KEY, measure, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    path.write_text(whole.replace("launch_us", "lunch_us") if text == "without launches" else text)
    for _ in range(2):
        assert kept_ceilings(KEY, measure, tmp_path) == KNOWN
    assert measure.call_count == 2
    assert list(tmp_path.iterdir()) == [path], "nothing half-written is left"


def test_where_they_are_kept(measure, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().is_relative_to(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert cache_folder().is_relative_to(tmp_path / "home" / ".cache")
    (tmp_path / "file").touch()
    for _ in range(2):  # a folder that cannot be written to costs only the memory
        assert kept_ceilings(KEY, measure, tmp_path / "file") == KNOWN
    assert measure.call_count == 2


def test_all_that_measures_is_part_of_the_way():
    """Every module of this program that the measuring ones import, but for those that only hold what they return."""
    named = set(METHOD_FILES)
    assert Path(measuring.__file__) in named
    for path in named:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("profiling."):
                imported = Path(str(importlib.import_module(str(node.module)).__file__))
                assert imported in named or imported.stem in HOLDERS, f"{path.name} measures by {imported.name} too"


def test_ceilings_of_a_run_are_measured_once_for_each_device_and_setup_and_way_to_measure(monkeypatch, tmp_path):
    asked, ways = [], (tmp_path / "measure.py", tmp_path / "pace.py")
    for way in ways:
        way.write_text("one way")

    def measured(device, dtype, *, threads, tf32):
        asked.append((str(device), dtype, threads, tf32))
        return replace(KNOWN, dtype=str(dtype).removeprefix("torch."))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(of_run, "measure_ceilings", measured)
    monkeypatch.setattr(ceilings_cache, "METHOD_FILES", ways)
    settings = Settings(device="cpu", dtype="bfloat16", scale="tiny", threads=1)
    machine = Environment(device=Device(type="cpu", name="planted"))
    said: list[object] = []
    first = of_run.ceilings_of(settings, machine, said.append)
    for changed in ({"dtype": "float32"}, {"tf32": True}, {"threads": 2}):
        of_run.ceilings_of(dataclasses.replace(settings, **changed), machine, said.append)
    of_run.ceilings_of(settings, replace(machine, device=Device(name="another")), said.append)
    assert of_run.ceilings_of(settings, machine, said.append) == first, "none pushes another out"
    assert asked == [
        ("cpu", torch.bfloat16, 1, False),
        ("cpu", torch.float32, 1, False),
        ("cpu", torch.bfloat16, 1, True),
        ("cpu", torch.bfloat16, 2, False),
        ("cpu", torch.bfloat16, 1, False),
    ]
    assert len(said) == len(asked), "what is read from the cache has no line of progress"
    ways[1].write_text("another way to measure")
    of_run.ceilings_of(settings, machine, said.append)
    assert len(asked) == 6
    assert read_environment(tmp_path).ceilings is None
    (tmp_path / "environment.json").write_text(json.dumps({"ceilings": msgspec.to_builtins(first)}))
    assert read_environment(tmp_path).ceilings == first


def test_a_device_that_fails_costs_the_rooflines_and_not_the_run(monkeypatch, tmp_path):
    fails = Mock(side_effect=torch.OutOfMemoryError("planted: out of memory\nand more"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(of_run, "measure_ceilings", fails)
    net = ComponentSpec("net", {"_target_": "torch.nn.Identity"}, {"input": {"shape": [1]}})
    recipe = {"_target_": "profiling.variants.recipe.Recipe"}
    job = Job("planted", net, "baseline", recipe, {}, Settings(device="cpu"), str(tmp_path), FORWARD)
    found = probe((job,), lambda event: None).environment
    assert found.ceilings_reason == "not measured: planted: out of memory"
    assert found.ceilings is None
