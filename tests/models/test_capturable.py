"""What compilation and CUDA graphs need of a forward pass: one graph, no tensor elsewhere, nothing read back."""

import pytest
import torch
from reference_data import TINY, as_float32, captured, flat, relative_error, tiny_network, without_gradient, worst_error
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.image_vae import group_variance

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class OneDeviceMode(TorchDispatchMode):
    """Fails at any operation that touches another device or reads a value back."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        assert "_local_scalar_dense" not in func.name(), "a value is read back"
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                assert value.device.type == self.device, f"{func.name()} makes a tensor on {value.device}"
        return result


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_stays_near_fp32_and_on_its_device(name, dtype):
    module, inputs = tiny_network(name, dtype)
    with torch.no_grad():
        rounded = flat(module(**inputs))
        exact = flat(module.float()(**as_float32(inputs)))
    for actual, expected in zip(rounded, exact, strict=True):
        assert torch.isfinite(actual).all()
        assert relative_error(actual, expected) < 0.1
    module.to("meta", dtype)
    with torch.no_grad(), OneDeviceMode("meta") as mode:
        outputs = flat(module(**{key: value.to("meta") for key, value in inputs.items()}))
    assert mode.operations > 20
    assert all(output.dtype == dtype for output in (*outputs, *rounded))


#: Two stages, one that changes the resolution and one that does not: more stages would only make tracing slower.
TWO_STAGES = {"strides": (2, 1)}


@pytest.mark.parametrize("name", TINY)
def test_compiles_into_one_graph(name):
    torch._dynamo.reset()
    module, inputs = tiny_network(name, torch.bfloat16, **TWO_STAGES if name.startswith("audio") else {})
    # Encoders are made of the decoders' layers, and CLIP of the library's: finding their graph is enough.
    backend = "aot_eager" if name in ("world_model", "image_decoder", "audio_decoder") else "eager"
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    with torch.no_grad():  # aot_eager takes bicubic apart and rounds in between
        assert worst_error(flat(compiled(**inputs)), flat(module(**inputs))) < 2e-2


@pytest.mark.parametrize("name", TINY)
def test_every_parameter_changes_an_output_that_is_not_constant(name):
    module, inputs = tiny_network(name)
    outputs = flat(module(**inputs))
    assert outputs[0].std() > 1e-2
    sum(output.square().sum() for output in outputs).backward()
    assert without_gradient(module) == []


def check_replay(module, inputs, others):
    graph, outputs = captured(lambda: flat(module(**inputs)))
    expected = [value.clone() for value in flat(module(**others))]
    for key, value in others.items():
        inputs[key].copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    for actual, value in zip(outputs, expected, strict=True):
        assert torch.isfinite(value).all()
        assert relative_error(actual, value) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tiny_networks_replay(name, dtype):
    module, inputs = tiny_network(name, dtype, "cuda")
    _, others = tiny_network(name, dtype, "cuda", seed=1)
    with torch.inference_mode():
        check_replay(module, inputs, others)


@pytest.mark.gpu
def test_narrow_variance_is_that_of_fp32():
    x = torch.randn(2, 32, 4096, device="cuda").bfloat16() + 5
    with torch.inference_mode():
        actual = group_variance(x)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, x.float().var(-1, correction=0), rtol=1e-4, atol=0)
