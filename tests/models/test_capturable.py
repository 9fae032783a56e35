"""What compilation and CUDA graphs need of a forward pass: one graph, no tensor elsewhere, nothing read back."""

import pytest
import torch
from reference_data import FULL_SIZE, STATE_DICTS, TINY, as_float32, captured, flat, relative_error, tiny_network
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models import audio_vae, image_vae, world_model
from models.initialisation import randomise

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FULL_INPUTS = {
    "world_model_1b": (world_model.world_model_inputs, 1),
    "world_model_200m": (world_model.world_model_inputs, 3),
    "image_decoder": (image_vae.image_decoder_inputs, 1),
    "audio_decoder": (audio_vae.audio_decoder_inputs, 120),
}


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


@pytest.mark.parametrize("name", TINY)
def test_compiles_into_one_graph(name):
    torch._dynamo.reset()
    module, inputs = tiny_network(name, torch.bfloat16)
    # Encoders are made of the decoders' layers, and CLIP of the library's: finding their graph is enough.
    backend = "aot_eager" if name in ("world_model", "image_decoder", "audio_decoder") else "eager"
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    with torch.no_grad():
        for actual, expected in zip(flat(compiled(**inputs)), flat(module(**inputs)), strict=True):
            assert relative_error(actual, expected) < 2e-2  # aot_eager takes bicubic apart and rounds in between


@pytest.mark.parametrize("name", TINY)
def test_every_parameter_changes_an_output_that_is_not_constant(name):
    module, inputs = tiny_network(name)
    outputs = flat(module(**inputs))
    assert outputs[0].std() > 1e-2
    sum(output.square().sum() for output in outputs).backward()
    without = [
        key for key, parameter in module.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    assert not without, "no gradient reaches them"


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
@pytest.mark.parametrize("name", FULL_SIZE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_full_size_networks_replay(name, dtype):
    config, factory, prefix = FULL_SIZE[name]
    with torch.device("meta"):
        module = factory(**STATE_DICTS[config]["config"]).to(dtype)
    module.to_empty(device="cuda")
    randomise(module, 0, prefix)
    make_inputs, frames = FULL_INPUTS[name]
    generator = torch.Generator("cuda").manual_seed(0)
    inputs, others = (
        make_inputs(module, batch=1, frames=frames, generator=generator, device="cuda", dtype=dtype) for _ in range(2)
    )
    with torch.inference_mode():
        check_replay(module, inputs, others)


@pytest.mark.gpu
def test_narrow_variance_is_that_of_fp32():
    from models.image_vae import group_variance

    x = torch.randn(2, 32, 4096, device="cuda").bfloat16() + 5
    with torch.inference_mode():
        actual = group_variance(x)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, x.float().var(-1, correction=0), rtol=1e-4, atol=0)
