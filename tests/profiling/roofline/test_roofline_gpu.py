"""Verdicts on planted kernels on a GPU, and roofline times that no physics beats."""

import subprocess
import sys

import pytest
import torch
from fixed_component import fixed_component
from planted_networks import Chain, Copy, Product

from profiling.metrics.clocks import CallClock
from profiling.results.jsonl import read_records
from profiling.roofline.measure_ceilings import measure_ceilings
from profiling.roofline.section import call_roofline

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

GIB = 2**30


@pytest.fixture(scope="module")
def ceilings():
    before = torch.cuda.memory_allocated()
    found = measure_ceilings(torch.device("cuda", 0), torch.bfloat16, threads=4, tf32=False)
    assert torch.cuda.memory_allocated() <= before + 128 * 2**20, "no more than the library's workspaces stay"
    return found


@torch.inference_mode()
def judged(ceilings, module, *, calls=50, **inputs):
    planted = fixed_component(module.cuda(), **{name: tensor.cuda() for name, tensor in inputs.items()})
    clock = CallClock(torch.device("cuda"))
    for _ in range(5):
        clock.sample(planted.call)
    walls = sorted(clock.sample(planted.call).wall for _ in range(calls))
    section = call_roofline(planted, planted.call, ceilings, walls[calls // 2], fused=False)
    print(section)
    return section


def test_ceilings_are_of_a_gpu(ceilings):
    assert ceilings.copy_bytes_per_s > 1e11
    assert 0.5 < ceilings.copy_bytes_per_s / ceilings.read_bytes_per_s < 2
    assert ceilings.matmul_flops_per_s > 1e13
    if torch.cuda.get_device_capability() >= (8, 9):
        rates = {name: rate / ceilings.matmul_flops_per_s for name, rate in ceilings.other_flops_per_s.items()}
        assert (ceilings.dtype, rates.keys()) == ("bfloat16", {"float32", "float16", "int8", "float8"})
        assert 1.2 < rates["float8"] < 2.5, "twice, by the data sheets"
        assert 0.8 < rates["float16"] < 1.25
        assert rates["float32"] < 0.2
    assert 1 < ceilings.launch_us < 100
    assert 0 <= ceilings.gap_us < 5
    assert 0 < ceilings.replay_us < 100


def test_ceilings_of_a_process_that_compiles_nothing_import_no_compiler():
    """torch.profiler imports the compiler at its first start, which takes longer than measuring the ceilings."""
    code = (
        "import sys, torch\n"
        "from profiling.roofline.measure_ceilings import measure_ceilings\n"
        "found = measure_ceilings(torch.device('cuda', 0), torch.bfloat16, threads=1, tf32=False)\n"
        "print(found.gap_us is not None, 'torch._inductor.config' in sys.modules, found.seconds)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seen, imported, seconds = ended.stdout.split()[-3:]
    print(f"{seconds} s")
    assert (seen, imported) == ("True", "False")


def test_a_chain_of_tiny_kernels_is_launch_bound_and_its_replay_is_predicted(ceilings):
    section = judged(ceilings, Chain(), x=torch.ones(64))
    assert section.bound == "launch overhead"
    assert section.device_work.kernels == section.operators == 500
    assert section.device_work.launches == 500
    x, clock = torch.ones(64, device="cuda"), CallClock(torch.device("cuda"))
    graph = torch.cuda.CUDAGraph()
    chain = Chain()
    with torch.cuda.graph(graph):
        made = chain(x)
    replays = sorted(clock.sample(graph.replay).wall for _ in range(50))
    assert made.shape == x.shape
    assert section.steps[0].variant == "cuda_graph"
    assert section.steps[0].wall_ms == pytest.approx(replays[25], rel=0.3)


def test_a_large_copy_is_memory_bound(ceilings):
    size = min(4 * GIB, torch.cuda.mem_get_info()[0] // 4)
    section = judged(ceilings, Copy(), calls=20, x=torch.ones(size // 4))
    assert section.bound == "memory bandwidth"
    assert section.bytes["total"] == 2 * (size // 4) * 4
    assert 0.9 <= section.over_roofline < 2


def test_a_large_product_is_compute_bound(ceilings):
    module = Product(8192, torch.bfloat16)
    section = judged(ceilings, module, calls=20, x=torch.randn(8192, 8192, dtype=torch.bfloat16))
    assert section.bound == "compute"
    assert section.flops == {"matmul": 2 * 8192**3, "total": 2 * 8192**3}
    assert 0.9 <= section.over_roofline < 2


class _Waits(torch.nn.Module):
    def forward(self, x):
        for _ in range(50):
            x = x + float(x.sum().item() > 0)
        return x


def test_waits_for_the_gpu_bound_the_host(ceilings):
    section = judged(ceilings, _Waits(), calls=10, x=torch.ones(64))
    assert section.device_work.waits >= 50
    assert section.bound == "host"


class _Crosses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.host = torch.empty(2**24, pin_memory=True)

    def forward(self, x):
        self.host.copy_(x, non_blocking=True)
        return self.host.to(x.device, non_blocking=True)


def test_transfers_between_host_and_device(ceilings):
    assert judged(ceilings, _Crosses(), calls=10, x=torch.ones(2**24)).bound == "transfers"


def test_in_a_run_the_prediction_meets_what_was_measured(profile, tmp_path):
    outcome = profile(
        "component=[world_model_step]",
        "variant=[baseline,cuda_graph]",
        "device=cuda",
        "ceilings=auto",
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert outcome.code == 0, outcome.out
    eager, replayed = read_records(outcome.folder).records
    assert eager.roofline.bound in ("launch overhead", "host"), "a slow host: both propose and predict the capture"
    assert eager.roofline.steps[0].variant == "cuda_graph"
    predicted, measured = eager.roofline.steps[0].wall_ms, replayed.metrics.wall_ms.p50
    assert 0.6 < measured / predicted < 1.7
    assert "Predicted and measured" in (outcome.folder / "report.md").read_text()
    for record in (eager, replayed):
        assert record.roofline.over_roofline >= 0.9
        assert record.roofline.idle_share < 1
        assert {each.kind for each in record.roofline.classes} >= {"gemm", "pointwise"}
        assert any(each.tflops for each in record.roofline.kernels), "a short trace knows the rates, also of a replay"
