"""Bytes and FLOPs of networks small enough to count them by hand."""

from functools import partial

import pytest
import torch
from fixed_component import Net
from fixed_component import fixed_component as component
from hand_made_ceilings import ceilings_of
from msgspec.structs import replace
from planted_networks import writes_rings
from torch import nn
from torch._higher_order_ops.out_dtype import out_dtype
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.flop_counter import register_flop_formula

from profiling.results.explanations import Roofline
from profiling.roofline.work import memory_and_compute_ms, work_of
from profiling.trace.flops import counted_flops
from profiling.training_step.options import TrainingOptions
from profiling.training_step.step import TrainingComponent, TrainingStep


@pytest.fixture(autouse=True)
def _as_in_a_cell():
    with torch.inference_mode():
        yield


def only(kind, flops):
    return {kind: flops, "total": flops}


def of(call, *table, **inputs):
    """Return the work of a function of a buffer, where there is one, and of named tensors."""
    module = Net(lambda self, **given: call(*self.buffers(), **given))
    for each in table:
        module.register_buffer("table", each)
    return work_of(component(module, **inputs))


def test_a_layer_moves_its_weights_inputs_and_outputs_once():
    work = work_of(component(nn.Linear(24, 40), input=torch.randn(3, 24)))
    assert work.flops == only("matmul", 2 * 3 * 24 * 40)
    parts = {"weights": 4 * (24 * 40 + 40), "inputs": 4 * 3 * 24, "outputs": 4 * 3 * 40}
    assert work.bytes == {**parts, "state_read": 0, "state_written": 0, "total": sum(parts.values())}
    work = work_of(component(nn.Sequential(nn.ReLU(), nn.Sigmoid()), input=torch.randn(100)))
    assert (work.operators, work.traffic_bytes) == (2, 4 * 4 * 100)
    assert work.bytes["total"] == 2 * 4 * 100, "the tensor between the two need not reach memory"
    work = work_of(component(nn.Identity(), input=torch.randn(1000)))
    assert work.bytes["total"] == work.operators == work.traffic_bytes == 0, "an output that is the input"


def test_an_operator_is_counted_as_the_one_that_it_is():
    def resized(self, x):  # torch can take the resize and the norm apart into a hundred operators
        return F.rms_norm(F.interpolate(self.conv(x), scale_factor=2.0, mode="bicubic"), (16,))

    convolution = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    work = work_of(component(Net(resized, conv=convolution), x=torch.randn(1, 4, 8, 8)))
    image, resized = 4 * 4 * 8 * 8, 4 * 4 * 16 * 16
    assert work.operators == 3
    assert work.traffic_bytes == (2 * image + 4 * 4 * 4 * 9) + (image + resized) + 2 * resized
    assert work.flops == only("convolution", 2 * (4 * 8 * 8) * (4 * 3 * 3)), "the counter does take them apart"


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (5, 7), (7, 5)])
def test_causal_attention_counts_the_pairs_that_it_attends(queries, keys, inference):
    """Query i attends the first i + 1 keys; without a mask it is scores, and their product with the values."""
    pairs = int(torch.ones(queries, keys).tril().sum())
    q, k, v = torch.randn(2, 3, queries, 8), torch.randn(2, 3, keys, 8), torch.randn(2, 3, keys, 8)
    for causal, attended in ((True, pairs), (False, queries * keys)):
        with torch.inference_mode(inference), torch.no_grad(), counted_flops() as flops:
            F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        assert flops.by_class == {"attention": 2 * (2 * 3) * attended * (8 + 8)}


def test_kernels_of_attention_count_alike():
    """Flash attention takes tokens before heads, and key and value with fewer heads than queries."""
    ops, by_token = torch.ops.aten, lambda *given: (x.transpose(1, 2) for x in given)
    q, k = torch.empty(2, 8, 64, 16, device="meta"), torch.empty(2, 2, 64, 16, device="meta")
    pairs = 64 * 65 // 2
    for call in (
        lambda: ops._scaled_dot_product_flash_attention(q, k, k, 0.0, True),
        lambda: ops._scaled_dot_product_cudnn_attention(q, k, k, None, False, 0.0, True),
        lambda: ops._flash_attention_forward(*by_token(q, k, k), None, None, 64, 64, 0.0, True, False),
        lambda: ops._efficient_attention_forward(*by_token(q, q, q), None, None, None, None, None, 0.0, 1),
    ):
        with counted_flops() as flops:
            call()
        assert flops.by_class == {"attention": 2 * (2 * 8) * pairs * (16 + 16)}


def test_flex_attention_counts_the_blocks_of_its_mask():
    """Of 300 tokens, in blocks of 128."""
    given = {name: torch.randn(2, 4, 300, 16) for name in "qkv"}
    size, tokens = given["q"].nbytes, 4 * (2 * 4 * 16)

    def work(mask, *, compiles=False):
        attend = torch.compile(flex_attention, fullgraph=True) if compiles else flex_attention
        blocks = create_block_mask(mask, None, None, 300, 300, device="cpu") if mask is not None else None
        module = Net(lambda self, q, k, v: attend(q, k, v, block_mask=self.blocks).transpose(1, 2).flatten(-2))
        module.blocks = blocks
        return work_of(component(module, **given))

    blocks = 128 * 128 + 128 * 256 + 44 * (128 + 44)  # of the diagonal, and one left of it
    for compiles in (False, True):
        last_64 = work(lambda b, h, q, k: (q >= k) & (q - k < 64), compiles=compiles)
        assert last_64.flops == only("attention", 2 * (2 * 4) * blocks * (16 + 16))
        assert (last_64.bytes["inputs"], last_64.bytes["outputs"]) == (3 * size, size)
    assert work(None).flops["total"] == 2 * (2 * 4) * 300 * 300 * (16 + 16)
    part = work(lambda b, h, q, k: k >= 256)
    assert part.flops["total"] == 2 * (2 * 4) * 300 * 44 * (16 + 16)
    assert part.bytes["inputs"] == tokens * (300 + 44 + 44), "keys in blocks that are not masked"


def test_a_transformer_layer_in_the_fused_kernel_of_eval_mode():
    """In eval mode torch calls one operator for the whole layer, of which its FLOP counter knows nothing."""
    projections, scores = 2 * 2 * 10 * (4 * 64 * 64), 2 * 2 * (10 * 10 * 64) * 2  # of 2 sequences of 10 tokens
    attention, x = nn.MultiheadAttention(64, 4, batch_first=True).eval(), torch.randn(2, 10, 64)
    alone = of(lambda x: attention(x, x, x, need_weights=False)[0], x=x)
    assert alone.flops == only("attention", projections + scores)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    whole = work_of(component(layer, src=x)).flops["total"]
    assert whole == projections + scores + 2 * 2 * 10 * (2 * 64 * 128)
    padding = torch.tensor([[False] * 10, [False] * 4 + [True] * 6])  # torch leaves the padding out: 14 tokens
    padded = work_of(component(nn.TransformerEncoder(layer, 1), src=x, src_key_padding_mask=padding))
    expected = 2 * 14 * (4 * 64 * 64 + 2 * 64 * 128) + 2 * 2 * ((10 * 10 + 4 * 4) * 64)
    assert padded.flops["total"] == expected


@pytest.mark.parametrize(
    ("call", "shapes", "flops"),
    [
        (torch.cdist, ((2, 10, 64), (2, 30, 64)), 2 * 2 * 10 * 30 * 64),
        (lambda a, b: torch.cdist(a, b, p=1.0), ((10, 64), (30, 64)), 2 * 10 * 30 * 64),
        (torch.dot, ((64,), (64,)), 2 * 64),
        (F.linear, ((24,), (40, 24)), 2 * 24 * 40),
        (F.bilinear, ((7, 8), (7, 16), (5, 8, 16)), 2 * 7 * 5 * 8 * 16),
        (torch.addbmm, ((4, 6), (3, 4, 5), (3, 5, 6)), 2 * 3 * 4 * 5 * 6),
        (lambda a, b: a.to(torch.complex64) @ b.to(torch.complex64), ((3, 8, 8), (3, 8, 8)), 4 * (2 * 3 * 8**3)),
        (lambda a: torch.cond(a.sum() > 0, lambda a: a @ a, lambda a: a.sin(), (a.abs(),)), ((8, 8),), 2 * 8**3),
        # torchao multiplies int8 matrices so on a GPU; torch's FLOP counter refuses this operator of higher order.
        (lambda a: out_dtype(torch.ops.aten.mm.default, torch.int32, a.char(), a.char()), ((8, 8),), 2 * 8**3),
    ],
)
def test_products_by_another_name(call, shapes, flops):
    given = dict(zip("abc", map(torch.randn, shapes), strict=False))
    assert of(lambda **given: call(*given.values()), **given).flops["total"] == flops


def test_convolutions():
    plain = nn.Conv2d(4, 6, 3, padding=1, bias=False), (2, 4, 8, 8), 2 * (2 * 6 * 8 * 8) * (4 * 3 * 3)
    normed = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3, bias=False)), (1, 4, 10), 2 * (6 * 8) * (4 * 3)
    for layer, shape, flops in (plain, normed):
        work = work_of(component(layer, input=torch.randn(shape)))
        assert work.flops == only("convolution", flops)
        assert work.bytes["weights"] >= 4 * sum(parameter.numel() for parameter in layer.parameters())


def test_recurrent_layers():
    """Both matrices of each of two layers, in both directions, for each of 2 · 5 inputs."""
    for kind, gates in ((nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)):
        layer = kind(32, 64, 2, batch_first=True, bidirectional=True)
        flops = 2 * (2 * 5) * 2 * (gates * 64) * ((32 + 64) + (2 * 64 + 64))
        assert work_of(component(layer, input=torch.randn(2, 5, 32))).flops == only("matmul", flops)
    # Of cuDNN it is one operator.
    weights = [torch.empty(shape, device="meta") for shape in ((256, 32), (256, 64), (256,), (256,))]
    x, state = torch.empty(5, 2, 32, device="meta"), torch.empty(1, 2, 64, device="meta")
    with counted_flops() as flops:
        torch.ops.aten._cudnn_rnn(x, weights, 4, None, state, state, 2, 64, 0, 1, False, 0.0, False, False, [], None)
    assert flops.by_class == {"matmul": 2 * (5 * 2) * 256 * (32 + 64)}


def test_flops_count_by_the_dtype_in_which_they_are_computed():
    def autocast(first, last, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ first
        return y.float() @ last

    work = of(autocast, first=torch.randn(64, 256), last=torch.randn(256, 8), x=torch.randn(16, 64))
    assert work.flops_by_dtype == {"bfloat16": 2 * 16 * 64 * 256, "float32": 2 * 16 * 256 * 8}
    assert work.flops == only("matmul", work.flops["total"])


def test_products_with_weights_of_few_bits():
    with FakeTensorMode(), counted_flops() as flops:
        x = torch.empty(5, 64, dtype=torch.bfloat16, device="cuda")
        torch.ops.aten._weight_int8pack_mm(x, x.new_empty(48, 64, dtype=torch.int8), x.new_empty(48))
        packed, scales = torch.empty(6, 4, 32, 1, dtype=torch.int32, device="cuda"), x.new_empty(2, 48, 2)
        torch.ops.aten._weight_int4pack_mm(x, packed, 32, scales)
    assert flops.by_dtype == {"bfloat16": 2 * (2 * 5 * 64 * 48)}, "the weights are widened"


@pytest.mark.filterwarnings("ignore:Sparse CS")  # torch calls it a beta
def test_a_sparse_matrix_counts_the_values_that_it_has():
    edges = torch.zeros(100, 200)
    edges[torch.arange(50), torch.arange(50)] = 1.5
    indices = {torch.sparse_coo: 2 * 50, torch.sparse_csr: 101 + 50, torch.sparse_csc: 201 + 50}
    for layout, count in indices.items():
        work = of(lambda edges, x: edges @ x, edges.to_sparse(layout=layout), x=torch.randn(200, 16))
        assert work.flops == only("matmul", 2 * 50 * 16)
        moved = {"weights": 4 * 50 + 8 * count, "inputs": 4 * 200 * 16, "outputs": 4 * 100 * 16}
        assert {name: work.bytes[name] for name in moved} == moved


def test_a_lookup_counts_the_rows_that_it_reads():
    ids = torch.tensor([3, 7, 7, 900])  # three distinct rows
    parts = {"table": nn.Embedding(1000, 16), "head": nn.Linear(16, 8, bias=False), "unused": nn.Linear(64, 64)}
    twice = Net(lambda self, ids: self.head(self.table(ids) + self.table(ids.flip(0))), **parts, idle=torch.ones(500))
    work = work_of(component(twice, ids=ids))
    assert work.bytes["weights"] == 4 * (3 * 16 + 16 * 8), "and the head; unused weights count nothing"
    assert work.bytes["inputs"] == 8 * 4
    rows = 4 * 4 * 16  # bytes that a lookup returns
    lookups = 2 * (8 * 4 + 2 * rows) + 2 * 8 * 4  # two of them; flipping the ids between
    assert work.traffic_bytes == lookups + 3 * rows + (rows + 4 * 16 * 8 + 4 * 4 * 8)
    bag = nn.EmbeddingBag(1000, 16, mode="sum")
    work = work_of(component(bag, input=ids, offsets=torch.tensor([0, 2])))
    assert work.bytes["weights"] == 4 * 3 * 16
    assert work.traffic_bytes < 4 * 1000 * 16


def test_shared_weights_and_views_of_weights_count_once():
    def whole_and_half(self, x):
        return self.second(self.first(x)) + F.pad(F.linear(x, self.first.weight[:16]), (0, 16))

    first, second = (nn.Linear(32, 32, bias=False) for _ in range(2))
    second.weight = first.weight
    work = work_of(component(Net(whole_and_half, first=first, second=second), x=torch.randn(2, 32)))
    assert work.bytes["weights"] == 4 * 32 * 32
    assert work.flops["matmul"] == 2 * 2 * 32 * 32 * 2 + 2 * 2 * 32 * 16

    def queries(self, x):  # a view of a parameter, as learned queries are repeated for a batch
        return self.layer(self.latents.expand(len(x), -1, -1))

    with torch.inference_mode(False):  # as a cell builds it
        parts = {"latents": nn.Parameter(torch.randn(4, 8)), "layer": nn.Linear(8, 8, bias=False)}
    work = work_of(component(Net(queries, **parts), x=torch.randn(2, 4, 8)))
    assert work.flops == only("matmul", 2 * (2 * 4) * 8 * 8)


@pytest.mark.parametrize(
    ("update", "elements", "reads"),
    [
        (lambda table, at, rows: table.index_add_(0, at, rows), 4 * 16, True),
        (lambda table, at, rows: table.scatter_add_(0, at[:, None].expand(4, 16), rows), 4 * 16, True),
        (lambda table, at, rows: table.scatter_reduce_(0, at[:, None].expand(4, 16), rows, "amax"), 4 * 16, True),
        (lambda table, at, rows: table.index_reduce_(0, at, rows, "prod"), 4 * 16, True),
        (lambda table, at, rows: table.index_copy_(0, at, rows), 4 * 16, False),
        (lambda table, at, rows: table.index_fill_(0, at, 0.0), 4, False),
    ],
    ids=["index_add", "scatter_add", "scatter_reduce", "index_reduce", "index_copy", "index_fill"],
)
def test_a_few_rows_of_a_table_are_updated(update, elements, reads):
    def write(table, rows):
        update(table, torch.arange(2, 6), rows)
        return rows

    work = of(write, torch.randn(1000, 16), rows=torch.randn(4, 16))
    assert work.bytes["state_written"] == 4 * elements
    assert work.bytes["state_read"] + work.bytes["weights"] == (4 * elements if reads else 0)


@pytest.mark.parametrize(("mode", "elements"), [("nearest", 1), ("bilinear", 4), ("bicubic", 16)])
def test_grid_sample_reads_the_neighbours_of_its_points(mode, elements):
    def sampled(image, grid):
        return F.grid_sample(image, grid, mode=mode, align_corners=False)

    image, few, many = torch.randn(1, 3, 40, 40), torch.zeros(1, 2, 5, 2), torch.zeros(1, 40, 40, 2)
    read = 3 * (2 * 5) * elements
    assert of(sampled, image=image, grid=few).bytes["inputs"] == 4 * (read + few.numel())
    assert of(sampled, image=image, grid=many).bytes["inputs"] == 4 * (image.numel() + many.numel())
    if mode == "bilinear":
        volume, grid = torch.randn(1, 3, 9, 9, 9), torch.zeros(1, 1, 1, 2, 3)
        assert of(sampled, image=volume, grid=grid).bytes["inputs"] == 4 * (3 * 2 * 8 + 6)


def test_nearest_resizing_reads_no_more_than_it_returns_and_a_fill_writes_all():
    work = of(lambda x: F.interpolate(x, scale_factor=0.125), x=torch.randn(1, 3, 64, 64))
    assert work.bytes["inputs"] == work.bytes["outputs"] == 4 * 3 * 8 * 8
    work = of(lambda board, x: board.copy_(x) * 2, torch.zeros(100), x=torch.randn(1))
    assert work.bytes["state_written"] == 4 * 100, "one number, a hundred times"


def test_state_is_read_and_written_by_what_a_call_touches():
    def writes_a_slot(self, x):
        self.slots.index_copy_(0, self.position % 10, x)
        self.position.add_(1)
        return self.slots.sum(0)

    module = Net(writes_a_slot, slots=torch.zeros(10, 64), position=torch.zeros(1, dtype=torch.int64))
    module.state_tensors = lambda: (module.slots, module.position)
    planted = component(module, x=torch.randn(1, 64))
    planted.reset()
    before = [tensor.clone() for tensor in planted.state()]
    work = work_of(planted)
    ring, slot, position = 4 * 10 * 64, 4 * 64, 8
    assert (work.bytes["state_read"], work.bytes["state_written"]) == (ring + position, slot + position)
    assert work.traffic_bytes == 2 * position + (position + 2 * slot) + 2 * position + (ring + slot)
    assert work.bytes["weights"] == 0
    assert all(map(torch.equal, planted.state(), before)), "as it was"


def test_a_cache_that_each_call_replaces_is_read():
    """As a transformers DynamicCache keeps the keys of the calls so far: each call assigns a longer tensor."""

    def grows(self, x):
        self.keys = torch.cat([self.keys, x])
        return self.keys.sum(0)

    module = Net(grows)
    module.keys = torch.randn(50, 64)
    planted = component(module, x=torch.randn(1, 64))
    planted.reset()
    held = planted.module.keys.nbytes
    planted.call()  # a metric that came before
    work = work_of(planted)
    assert (work.bytes["state_read"], work.bytes["inputs"]) == (held, 4 * 64)


def test_an_operator_from_outside_writes_no_more_than_it_is_given_and_keeps():
    """It is given 3 · 128 numbers and a gain, and returns 128: the others are the keys and the values."""
    work = work_of(component(writes_rings(), qkv=torch.randn(3, 128, dtype=torch.bfloat16)))
    keys_and_values = 2 * (2 * 128)
    assert keys_and_values <= work.bytes["state_written"] <= keys_and_values + 2
    assert work.bytes["state_read"] == 0


def test_an_operator_from_outside_is_named():
    torch.library.define("planted_limits::twice", "(Tensor x) -> Tensor")
    torch.library.impl("planted_limits::twice", "default", lambda x: x * 2)
    work = of(torch.ops.planted_limits.twice, x=torch.randn(8))
    assert work.uncounted == ("planted_limits::twice",)
    assert work.bytes["total"] == 2 * 4 * 8
    register_flop_formula(torch.ops.planted_limits.twice)(lambda shape, **_: shape[0])
    counted = of(torch.ops.planted_limits.twice, x=torch.randn(8))
    assert counted.uncounted == (), "somebody said what it costs"
    assert counted.flops["total"] == 8


ROWS, INPUTS, OUTPUTS = 6, 24, 40
WEIGHT = 4 * INPUTS * OUTPUTS  # bytes
PRODUCT = 2 * ROWS * INPUTS * OUTPUTS  # FLOPs


class Training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, OUTPUTS, bias=False), nn.Linear(OUTPUTS, INPUTS, bias=False)

    def forward(self, x):
        return self.second(self.first(x)).square().mean()


def training_work(device, make):
    step = TrainingStep(Training().to(device), make, TrainingOptions()).train()
    inputs = {"x": torch.randn(ROWS, INPUTS, device=device)}
    place = torch.device(device)
    return work_of(TrainingComponent("planted", step, inputs, lambda _: inputs, place, torch.float32, ROWS, "random"))


@torch.inference_mode(False)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_training_step_reads_and_writes_weights_and_moments(device):
    counts = training_work(device, partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    # Forward two products; backward two for the weights, and one for what the second layer was given.
    assert counts.flops["total"] == 5 * PRODUCT
    assert counts.bytes["weights"] == 2 * WEIGHT
    assert counts.bytes["inputs"] == 4 * ROWS * INPUTS
    assert counts.bytes["outputs"] == 4
    assert 0 <= counts.bytes["state_read"] - 2 * WEIGHT <= 4, "momentum, and the learning rate"
    assert counts.bytes["state_written"] == 2 * 2 * WEIGHT, "weights and momentum"
    assert counts.traffic_bytes > counts.bytes["total"], "also gradients"
    two = training_work(device, partial(torch.optim.AdamW, lr=0.1, fused=device == "cuda"))
    assert 0 <= two.bytes["state_read"] - 4 * WEIGHT <= 32, "two moments, and step numbers"
    assert 0 <= two.bytes["state_written"] - 6 * WEIGHT <= 16


def terms(ceilings, size=0, **flops):
    return memory_and_compute_ms(Roofline(bytes={"total": size}, flops_by_dtype=flops), ceilings)


def test_both_terms():
    ceilings = replace(ceilings_of(1e9), read_bytes_per_s=2e9, bandwidth=((1000, 8e9), (10**6, 2e9)))
    assert terms(ceilings, 4 * 10**6, float32=10**6) == (2.0, 1.0)
    quicker = replace(ceilings, conv_flops_per_s=4e9)
    assert terms(quicker, float32=10**6)[1] == 0.25, "no operator beats the faster of the two rates"
    mixed = {"float32": 10**6, "int8": 3 * 10**6, "bfloat16": 2 * 10**6}
    assert terms(replace(ceilings, other_flops_per_s={"int8": 3e9, "bfloat16": 2e9}), **mixed)[1] == 3.0
    slow = replace(ceilings, other_flops_per_s={"int8": 1e8, "bfloat16": 5e8})
    assert terms(slow, **mixed)[1] == 8.0, "8 bits can be widened first; bfloat16 is what it is"
    assert terms(ceilings, **mixed)[1] == 6.0, "measured by an earlier version"
    small = terms(ceilings, 4000)
    assert small == pytest.approx((1e3 * 4000 / 8e9, 0.0)), "a cache holds so much: its bandwidth is the ceiling"
