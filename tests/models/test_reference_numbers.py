"""Published names, shapes, parameter counts and outputs: small networks always, full-size ones on request."""

import copy

import pytest
import torch
from reference_data import (
    FULL_SIZE,
    STATE_DICTS,
    TOLERANCE,
    WORLD_MODEL_INPUTS,
    factory_of,
    flat,
    full_size_sample,
    name_differences,
    relative_error,
    small_sample,
)

from profiling.machine.tf32 import strict_float32


@pytest.mark.parametrize("name", STATE_DICTS)
def test_names_and_shapes_are_the_published_ones(name):
    entry = STATE_DICTS[name]
    with torch.device("meta"):
        module = factory_of(name)(**entry["config"])
    assert name_differences(module.state_dict(), entry["digests"]) == []
    assert sum(each.numel() for each in module.parameters() if each.requires_grad) == entry["trainable_parameters"]


# Relative L2 error that 16-bit weights and activations may cause. The audio decoder's snakes take the sine of what has
# passed through 30 of them, so it feels rounding most: in the small one, rounding its weights alone makes 3%.
ROUNDING = {"world_model_1b": 5e-2, "world_model_200m": 5e-2, "image_decoder": 2e-2, "audio_decoder": 0.15}


def test_small_world_model():
    module, tensors = small_sample("world_model_small")
    with torch.no_grad():
        for case in ("n1", "n3", "n6"):
            inputs = {key: tensors[f"{case}.in.{key}"] for key in WORLD_MODEL_INPUTS}
            for name, actual in zip(("video", "audio"), module(**inputs), strict=True):
                torch.testing.assert_close(actual, tensors[f"{case}.out.{name}"], **TOLERANCE)
        video, _ = module.double()(**{key: value.double() for key, value in inputs.items()})
    assert video.dtype == torch.float64
    torch.testing.assert_close(video.float(), tensors["n6.out.video"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["image_vae_small_landscape", "image_vae_small_square", "audio_vae_small"])
def test_small_autoencoder(name):
    module, tensors = small_sample(name)
    with torch.no_grad():
        torch.testing.assert_close(module.decoder(tensors["decode.in.z"]), tensors["decode.out.x"], **TOLERANCE)
        torch.testing.assert_close(module.encoder(tensors["encode.in.x"]), tensors["encode.out.z"], **TOLERANCE)


def outputs_by_name(name, module, inputs):
    output = flat(module(**inputs))
    if name.startswith("world_model"):
        return dict(zip(("video", "audio"), output, strict=True))
    (x,) = output
    return {"x[:,:,::8,::8]": x[:, :, ::8, ::8]} if name == "image_decoder" else {"x[:,:,::49]": x[:, :, ::49]}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_on_the_cpu(name):
    module, inputs, expected = full_size_sample(name, "cpu")
    with torch.no_grad():
        actual = outputs_by_name(name, module, inputs)
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(actual[key], value, **TOLERANCE)


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_on_the_gpu(name, capsys):
    module, inputs, expected = full_size_sample(name, "cuda")
    with torch.inference_mode(), strict_float32():
        exact = outputs_by_name(name, module, inputs)
        for key, value in expected.items():
            torch.testing.assert_close(exact[key], value, **TOLERANCE)
        for dtype in (torch.bfloat16, torch.float16):
            # Noise level and mouse stay fp32: they are multiplied by 1000, so rounding them asks another question.
            cast = {key: value if key in ("t", "mouse") else value.to(dtype) for key, value in inputs.items()}
            rounded = outputs_by_name(name, copy.deepcopy(module).to(dtype), cast)
            for key, value in expected.items():
                error = relative_error(rounded[key], value)
                with capsys.disabled():
                    print(f"\n{name}.{key} {dtype}: relative L2 error {error:.2e}")
                assert error < ROUNDING[name]
