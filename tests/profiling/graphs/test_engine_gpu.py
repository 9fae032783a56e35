"""CudaGraphed against eager: signatures, aliasing, random numbers, modes, switches, memory."""

import gc
import random
import statistics

import pytest
import torch
from torch import nn

from profiling.errors import InputError
from profiling.graphs import CaptureError, CudaGraphed, cuda_graphs, set_cuda_graphs
from profiling.machine.memory import pool_bytes

pytestmark = pytest.mark.gpu


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, scale=1.0):
        return self.two(torch.relu(self.one(x))) * scale


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().cuda().eval()


def check(module, graphed, *args, times=3):
    for _ in range(times):
        expected, actual = module(*args), graphed(*args)
        torch.testing.assert_close(actual, expected)
        for arg in args:
            if isinstance(arg, torch.Tensor) and arg.is_floating_point():
                with torch.no_grad():
                    arg.add_(0.25)


@torch.no_grad()
def test_a_graph_for_each_signature(net):
    graphed = CudaGraphed(net)
    small, large = torch.randn(2, 16, device="cuda"), torch.randn(64, 16, device="cuda")
    for args in ((small,), (large,), (small, 2.0), (small,), (large.t().contiguous().t(),)):
        check(net, graphed, *args, times=2)
    counters = graphed.counters
    assert (counters.recorded, counters.held, counters.evicted) == (4, 4, 0)
    assert counters.replayed == 10 - 4
    assert counters.pool_bytes > 0
    assert counters.capture_seconds > 0


@torch.no_grad()
def test_the_cache_evicts_the_graph_used_longest_ago(net):
    graphed = CudaGraphed(net, max_graphs=2)
    a, b, c = (torch.randn(n, 16, device="cuda") for n in (1, 2, 3))
    for x in (a, b, a, c, a):  # b is the one that goes
        torch.testing.assert_close(graphed(x), net(x))
    assert (graphed.counters.recorded, graphed.counters.evicted, graphed.counters.held) == (3, 1, 2)
    graphed(b)
    assert (graphed.counters.recorded, graphed.counters.evicted) == (4, 2)


@torch.no_grad()
def test_any_order_of_replays_is_right_in_one_pool(net):
    graphed = CudaGraphed(net)
    inputs = [torch.randn(n, 16, device="cuda") for n in (1, 700, 33, 256, 4096)]
    order = [index for index in range(5) for _ in range(20)]
    random.Random(0).shuffle(order)
    kept = [(graphed(inputs[index] + step), net(inputs[index] + step)) for step, index in enumerate(order)]
    for actual, expected in kept:
        torch.testing.assert_close(actual, expected)


def wide(rows):
    return torch.randn(rows, 1024, device="cuda")


@torch.no_grad()
def test_five_shapes_share_a_pool_of_little_more_than_the_largest():
    module = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
    alone = CudaGraphed(module)
    alone(wide(16384))
    largest = alone.counters.pool_bytes
    together = CudaGraphed(module)
    for rows in (16384, 1024, 2048, 512, 256):
        together(wide(rows))
    assert together.counters.pool_bytes <= 1.3 * largest


@torch.no_grad()
def test_memory_of_evicted_graphs_is_reused():
    module = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
    graphed = CudaGraphed(module, max_graphs=2)
    sizes = []
    for rows in (8232, 8224, 8216, 8208, 8200, 8192):  # each fits where the one before it was
        graphed(wide(rows))
        sizes.append(graphed.counters.pool_bytes)
    assert sizes[-1] <= sizes[1] * 1.1, "six graphs in the room of two"
    (pool,) = graphed._pools
    graphed.clear()
    gc.collect()
    torch.cuda.empty_cache()
    assert pool_bytes(pool) == 0
    torch.testing.assert_close(graphed(x := wide(64)), module(x))


@torch.no_grad()
def test_cuda_graphs_replaces_forward_inside_the_block_only(net):
    calls = []
    net.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(4, 16, device="cuda")
    for _ in range(2):
        with cuda_graphs(net, warmup=1) as graphed:
            for _ in range(3):
                expected = net.two(torch.relu(net.one(x)))
                torch.testing.assert_close(net(x), expected)
                x.add_(1)
        assert graphed.counters.recorded == 1
        assert graphed.counters.held == 0
        assert "forward" not in vars(net)
        net.one.weight.mul_(2)
    assert len(calls) == 6, "hooks run once a call"


@torch.no_grad()
def test_switching_off_and_on_gives_no_stale_results(net):
    graphed = CudaGraphed(net)
    x = torch.randn(4, 16, device="cuda")
    graphed(x)
    net.one.weight.mul_(3)  # in place: the graph follows
    torch.testing.assert_close(graphed(x), net(x))
    try:
        set_cuda_graphs(False)
        before = graphed.counters
        torch.testing.assert_close(graphed(x), net(x))
        assert graphed.counters.replayed == before.replayed
        net.one.weight = nn.Parameter(torch.randn_like(net.one.weight))  # replaced: the graph reads the old one
        set_cuda_graphs(True)
        torch.testing.assert_close(graphed(x), net(x))
        assert graphed.counters.recorded == 2
        set_cuda_graphs(False)
        set_cuda_graphs(True)
        torch.testing.assert_close(graphed(x), net(x))
        assert graphed.counters.recorded == 2, "nothing was replaced: the graphs still hold"
    finally:
        set_cuda_graphs(True)


def mutates(x, y):
    x.add_(1)
    return x * y


def clamps(x):
    return x.clamp_(min=-100), x + 1


def identity(x, y):
    return {"same": x, "part": y[1:], "turned": y.t(), "new": x + y}


def twice(x):
    y = x * 2
    return y, y, [y + 1]


def add_views(x, y):
    x.mul_(2)
    return x.sum() + y.sum()


def base(*shape):
    return torch.randn(*shape, device="cuda")


def same_twice():
    x = base(8, 8)
    return mutates, (x, x)


def views_of_each_other():
    x = base(8, 8)
    return add_views, (x, x[2:4])


def interleaved():
    x = base(8, 8)
    return add_views, (x[:, ::2], x[:, 1::2])


def strided():
    return identity, (base(8, 16)[:, ::2], base(8, 8).t())


def expanded():
    return torch.mul, (base(8, 1).expand(8, 8), base(8, 8))


CASES = {
    "writes its input": lambda: (mutates, (base(8, 8), base(8, 8))),
    "may write its input": lambda: (clamps, (base(8),)),
    "the same tensor twice": same_twice,
    "views of each other": views_of_each_other,
    "interleaved views": interleaved,
    "not contiguous": strided,
    "expanded": expanded,
    "outputs that are inputs": lambda: (identity, (base(8, 8), base(8, 8))),
    "an output twice": lambda: (twice, (base(8),)),
    "nothing but numbers": lambda: (lambda x, n: x * n, (base(8), 3)),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference"])
@pytest.mark.parametrize("case", CASES)
def test_inputs_and_outputs_behave_as_in_eager(case, mode):
    with mode():
        torch.manual_seed(0)
        function, mine = CASES[case]()
        torch.manual_seed(0)
        _, theirs = CASES[case]()
        graphed = CudaGraphed(function)
        for _ in range(4):
            expected, actual = function(*theirs), graphed(*mine)
            torch.testing.assert_close(actual, expected)
            for given, other in zip(mine, theirs, strict=True):
                torch.testing.assert_close(given, other)
        assert graphed.counters.recorded == 1


def test_outputs_that_are_inputs_are_the_callers_tensors():
    with torch.no_grad():
        x, y = base(8, 8), base(8, 8)
        graphed = CudaGraphed(identity)
        for _ in range(2):
            out = graphed(x, y)
            assert out["same"] is x
            assert out["part"].data_ptr() == y[1:].data_ptr()
            assert out["turned"].data_ptr() == y.data_ptr()
    with torch.no_grad():
        first, second, _ = CudaGraphed(twice)(x)
        assert first is second


def test_inputs_that_require_grad():
    x = torch.randn(8, device="cuda", requires_grad=True)
    with torch.no_grad():
        torch.testing.assert_close(CudaGraphed(torch.sin)(x), x.sin())
    with pytest.raises(CaptureError, match="requires grad"):
        CudaGraphed(torch.sin)(x)
    graphed = CudaGraphed(lambda v: torch.autograd.grad(v.pow(3).sum(), v)[0])
    for _ in range(3):
        torch.testing.assert_close(graphed(x), 3 * x.detach() ** 2)
        with torch.no_grad():
            x.add_(1)
    with pytest.raises(CaptureError, match=r"\.grad of an input"):
        CudaGraphed(lambda v: v.pow(2).sum().backward())(x)
    x.grad = None


@torch.no_grad()
def test_random_numbers_are_fresh_and_follow_the_seed():
    drop = nn.Dropout(0.5)
    graphed = CudaGraphed(lambda x: (drop(x), torch.rand_like(x), torch.randn(4, device="cuda")))
    x = torch.ones(256, device="cuda")
    sequences = []
    for run in (graphed, graphed, graphed._call):
        torch.manual_seed(7)
        sequences.append([[leaf.clone() for leaf in run(x)] for _ in range(5)])
    assert not torch.equal(sequences[0][0][0], sequences[0][1][0]), "each replay draws fresh numbers"
    torch.testing.assert_close(sequences[1], sequences[0])
    torch.testing.assert_close(sequences[2], sequences[0], msg="the numbers that eager draws")


@torch.no_grad()
def test_a_generator_argument_is_drawn_from():
    generator = torch.Generator("cuda").manual_seed(3)
    graphed = CudaGraphed(lambda x, generator: x + torch.rand(8, device="cuda", generator=generator))
    x = torch.zeros(8, device="cuda")
    mine = [graphed(x, generator=generator) for _ in range(3)]
    generator.manual_seed(3)
    theirs = [graphed._call(x, generator=generator) for _ in range(3)]
    torch.testing.assert_close(mine, theirs)


def test_autocast_and_inference_mode_are_those_of_the_call(net):
    graphed = CudaGraphed(net)
    x = torch.randn(4, 16, device="cuda")
    with torch.no_grad():
        assert graphed(x).dtype == torch.float32
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            with torch.autocast("cuda", dtype=dtype):
                out = graphed(x)
                assert out.dtype == dtype
                torch.testing.assert_close(out, net(x))
    with torch.inference_mode():
        assert graphed(x).is_inference()
    assert graphed.counters.recorded == 4


@torch.no_grad()
def test_capturing_changes_the_modules_state_once():
    norm, twin = (nn.BatchNorm1d(16).cuda().train() for _ in range(2))
    graphed = CudaGraphed(norm)
    for _ in range(3):
        x = torch.randn(32, 16, device="cuda")
        torch.testing.assert_close(graphed(x), twin(x))
        torch.testing.assert_close(norm.running_mean, twin.running_mean)
        assert norm.num_batches_tracked == twin.num_batches_tracked
    norm.eval()
    twin.eval()
    torch.testing.assert_close(graphed(x), twin(x))


class Counts(nn.Module):
    """Counts its calls in a Python number, for statistics or as a position."""

    def __init__(self, *, reads):
        super().__init__()
        self.reads, self.calls = reads, 0

    def forward(self, x):
        self.calls += 1
        return x + self.calls if self.reads else x + 1


class Lazy(nn.Module):
    """Makes a mask, a generator and a sum in its first call, and holds its last output."""

    def __init__(self):
        super().__init__()
        self.mask = self.generator = self.total = self.last = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.arange(8, device=x.device) % 2
            self.generator = torch.Generator(x.device).manual_seed(3)
            self.total = torch.zeros(8, device=x.device)
        self.total.add_(x)
        self.last = self.mask * self.total + torch.rand(8, device=x.device, generator=self.generator)
        return self.last


@torch.no_grad()
def test_a_number_that_each_call_changes_is_refused_unless_it_is_allowed():
    x = torch.zeros(8, device="cuda")
    for reads in (True, False):
        module = Counts(reads=reads)
        with pytest.raises(CaptureError, match=r"`calls` is a Python number that each call changes \(1 → 2"):
            CudaGraphed(module)(x)
        assert module.calls == 0
    graphed = CudaGraphed(module, allow=["calls"])
    torch.testing.assert_close(graphed(x), x + 1)


@torch.no_grad()
def test_what_the_first_call_makes_is_followed_from_the_first_call_on():
    graphed, twin = CudaGraphed(Lazy()), Lazy()
    for _ in range(4):
        x = torch.randn(8, device="cuda")
        torch.testing.assert_close(graphed(x), twin(x))


@pytest.mark.parametrize("alias", [False, True])
def test_outputs_kept_over_100_frames(alias):
    weight = base(8, 8)
    with torch.inference_mode():
        graphed = CudaGraphed(lambda x: {"y": x @ weight}, alias_outputs=alias)
        kept, expected, x = [], [], base(4, 8)
        for _ in range(100):
            x.normal_()
            kept.append(graphed(x)["y"])
            expected.append(x @ weight)
        if alias:  # asked for: every one is the graph's own memory and reads as the newest
            assert len({leaf.data_ptr() for leaf in kept}) == 1
            torch.testing.assert_close(kept[0], expected[-1])
        else:
            torch.testing.assert_close(kept, expected)


@torch.no_grad()
def test_inputs_in_place_are_not_copied(net):
    graphed = CudaGraphed(net)
    x = torch.randn(4, 16, device="cuda")
    (static,), _ = graphed.static_inputs(x)
    for _ in range(3):
        static.normal_()
        torch.testing.assert_close(graphed(static), net(static))
    assert graphed.counters.recorded == 1


@torch.no_grad()
def test_a_call_inside_another_capture_becomes_part_of_it(net):
    inner = CudaGraphed(net)
    outer = CudaGraphed(lambda x: inner(x) + 1)
    x = torch.randn(4, 16, device="cuda")
    for _ in range(3):
        torch.testing.assert_close(outer(x), net(x) + 1)
        x.add_(1)


def test_options_are_checked(net):
    with pytest.raises(InputError, match="max_graphs"):
        CudaGraphed(net, max_graphs=0)
    with pytest.raises(InputError, match="warmup"):
        CudaGraphed(net, warmup=0)
    with pytest.raises(CaptureError, match="is on cpu"), torch.no_grad():
        CudaGraphed(lambda a, b: a * b)(base(4), torch.ones(4))


@torch.no_grad()
def test_kernels_keep_the_priority_of_their_capture():
    """Both wait for multiprocessors that another stream's kernels of many blocks fill; one of them is let in first."""
    large, small = torch.ones(2**29, device="cuda"), torch.ones(2**20, device="cuda")

    def chain(x):
        for _ in range(10):
            x = x * 1.5
        return x

    graphs = {priority: CudaGraphed(chain, priority=priority) for priority in (0, -2)}
    for graphed in graphs.values():
        graphed(small)
    urgent, times = torch.cuda.Stream(), {0: [], -2: []}
    for priority in [0, -2] * 5:
        torch.cuda.synchronize()
        for _ in range(20):  # a millisecond each
            large.neg_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(urgent):
            start.record()
            graphs[priority](small)
            end.record()
        end.synchronize()
        times[priority].append(start.elapsed_time(end))
    assert statistics.median(times[-2]) < 0.5 * statistics.median(times[0])
