"""The dtypes of a module: what a cast leaves in float32, autocast however it is called, float32 without a copy."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from profiling.components.casting import call_under, cast_module, floating_dtype, mixes_dtypes, parameter_dtypes
from profiling.components.outputs import relative_l2
from profiling.errors import InputError

CPU = torch.device("cpu")
T5 = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 20}


class Net(nn.Module):
    """Weights read in every way: by layers, functions, views, lists and fused operators; and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(50, 32), nn.Linear(32, 32)
        self.conv, self.norms = nn.Conv1d(32, 32, 3, padding=1), nn.ModuleList([nn.LayerNorm(32), nn.GroupNorm(4, 32)])
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.recurrent, self.layer = nn.LSTM(32, 32), nn.TransformerEncoderLayer(32, 4, batch_first=True)
        self.batch_norm, self.scale = nn.BatchNorm1d(32), nn.Parameter(torch.randn(1, 32))
        self.state = nn.Buffer(torch.zeros(2, 7, 32))

    def forward(self, tokens, x):
        h = self.embedding(tokens) + x.to(self.linear.weight.dtype) * self.scale[:, :]
        h = self.norms[0](h + self.linear(h))
        h = h + self.attention(h, h, h)[0]
        h = h + self.recurrent(h)[0]
        h = self.batch_norm(self.norms[1](self.conv(h.mT))).mT
        self.state.add_(h)
        h = self.layer(h + self.state)
        h = torch.matmul(h, torch.cat([self.linear.weight.T, self.linear.weight.data], 1))
        return F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None])[:, 0]


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 7, 32, generator=generator).bfloat16()
    return {"tokens": torch.randint(0, 50, (2, 7), generator=generator), "x": x.to(dtype)}


def formed(module, form, cast="module", dtype=torch.bfloat16):
    module = copy.deepcopy(module)
    cast_module(module, form, cast, dtype, CPU)
    return module


def dtypes(module):
    return {name: str(t.dtype) for name, t in (*module.named_parameters(), *module.named_buffers())}


@torch.inference_mode()
def test_widened_operations_give_the_numbers_of_a_float32_copy_and_leave_the_weights(net):
    half = formed(net, "run")
    exact, widened = formed(half, "float32"), formed(net, "upcast")
    expected = exact(**inputs())
    torch.testing.assert_close(widened(**inputs()), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(widened.state, exact.state, rtol=1e-5, atol=1e-5)
    assert parameter_dtypes(widened) == {"bfloat16": sum(p.numel() for p in net.parameters())}
    assert relative_l2(half(**inputs(torch.bfloat16)), expected) > 1e-3, "eager in half precision differs"
    torch.testing.assert_close(widened(**inputs()), exact(**inputs()), rtol=1e-5, atol=1e-5)


class Addressed(nn.Linear):
    def forward(self, x):
        return x + self.weight.data_ptr()


def test_the_address_of_a_weight_is_not_that_of_its_copy():
    with pytest.raises(RuntimeError, match="reads the address of a weight"):
        formed(Addressed(4, 4), "upcast")(torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_transformers_keeps_in_float32_what_it_loads_so(dtype, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = transformers.T5EncoderModel(transformers.T5Config(**T5))
    model.save_pretrained(tmp_path)
    loaded = transformers.T5EncoderModel.from_pretrained(tmp_path, dtype=dtype)
    wrapped = formed(nn.Sequential(nn.ModuleDict({"text": model})), "run", dtype=dtype)
    ours = {name.removeprefix("0.text."): kind for name, kind in dtypes(wrapped).items()}
    assert ours == dtypes(loaded)
    kept = [name for name, kind in ours.items() if kind == "torch.float32"]
    assert [name for name in kept if ".wo." in name] == (kept if dtype == torch.float16 else [])
    assert bool(kept) == (dtype == torch.float16)


def test_diffusers_keeps_in_float32_what_the_model_names():
    diffusers = pytest.importorskip("diffusers")
    config = {"num_attention_heads": 2, "attention_head_dim": 12, "num_layers": 1, "ffn_dim": 32, "text_dim": 16}
    model = formed(diffusers.WanTransformer3DModel(**config), "run")
    named = set(model._keep_in_fp32_modules)
    assert named >= {"time_embedder", "scale_shift_table", "norm2"}
    for name, kind in dtypes(model).items():
        kept = any(part in named for part in name.split(".")) or name.startswith("rope")
        assert (kind in ("torch.float32", "torch.float64")) == kept, name


def test_only_numbers_are_cast():
    module = nn.Linear(2, 2)
    module.frequencies = nn.Buffer(torch.ones(2, dtype=torch.complex64))
    module.packed = nn.Buffer(torch.ones(2).to(torch.float8_e4m3fn))
    module.index = nn.Buffer(torch.arange(2))
    expected = {"weight": "torch.bfloat16", "bias": "torch.bfloat16", "frequencies": "torch.complex64"}
    expected |= {"packed": "torch.float8_e4m3fn", "index": "torch.int64"}
    assert dtypes(formed(module, "run")) == expected
    assert dtypes(formed(module.bfloat16(), "run", cast="none", dtype=torch.float32))["weight"] == "torch.bfloat16"


@torch.inference_mode()
def test_autocast_holds_however_the_module_is_called(net):
    del net.recurrent  # torch.compile splits the graph at it
    net.recurrent = lambda h: (h,)
    wrapped = formed(net, "run", "autocast")
    assert set(parameter_dtypes(wrapped)) == {"float32"}
    with torch.autocast("cpu", torch.bfloat16):
        expected = copy.deepcopy(net)(**inputs())
    assert relative_l2(copy.deepcopy(net)(**inputs()), expected) > 1e-3, "without autocast it differs"
    compiled = torch.compile(copy.deepcopy(wrapped), backend="aot_eager", fullgraph=True)
    for call, limit in ((compiled, 0.01), (copy.deepcopy(wrapped), 1e-6), (wrapped, 1e-6)):
        output = call(**inputs())
        assert output.dtype == expected.dtype == torch.bfloat16
        assert relative_l2(output, expected) < limit
    assert type(wrapped).__name__ == "Net"
    torch._dynamo.reset()
    call_under(net, lambda: torch.autocast("cpu", torch.bfloat16))()
    assert type(net) is Net, "undone"


def test_a_forward_that_a_library_replaced_is_refused(net):
    net.forward = net.forward
    with pytest.raises(InputError, match=r"Net\.forward is not that of its class.*Use cast: module"):
        formed(net, "run", "autocast")


def test_the_dtype_of_most_elements():
    tensors = [torch.zeros(3, dtype=torch.int64), torch.zeros(2), torch.zeros(4, dtype=torch.bfloat16)]
    assert floating_dtype(tensors, torch.float16) == torch.bfloat16
    assert floating_dtype(tensors[:1], torch.float16) == torch.float16


MIXED = (
    lambda x: x @ x.bfloat16(),
    *(layer.bfloat16() for layer in (nn.Linear(2, 2), nn.Conv1d(2, 2, 1), nn.LayerNorm(2), nn.LSTM(2, 2))),
    lambda x: F.scaled_dot_product_attention(x[None], x[None].bfloat16(), x[None].bfloat16()),
    lambda x: x.index_copy_(0, torch.tensor([0]), x[:1].bfloat16()),
    lambda x: torch.lerp(x, x.half(), 0.5),
)
OTHERS = (lambda x: x @ torch.ones(3, 2), lambda x: torch.fft.rfft(x.half()))


@pytest.mark.parametrize("call", [*MIXED, *OTHERS])
def test_which_errors_of_operators_are_of_mixed_dtypes(call):
    with pytest.raises((RuntimeError, ValueError)) as raised:
        call(torch.ones(2, 2))
    assert mixes_dtypes(raised.value) is (call in MIXED)
