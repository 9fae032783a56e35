"""Decoders compute the same with the steps that replace their convolutions, norms and interpolation."""

from dataclasses import replace

import pytest
import torch
from fixed_component import fixed_component, shipped_recipe
from fx_networks import assert_as_a_real_run_shows, assert_same, f32

from models.audio_vae import AudioDecoder, AudioVAEParams
from models.image_vae import ImageDecoder, ImageVAEParams
from models.initialisation import randomise
from models.kernels import convolution, forms, fused_norm
from profiling.variants.rewrite import Rewrite

STEPS = "channels_last+fold_upsampling+fused_norm+grouped_conv+pointwise_conv+interpolation"


def image_decoder():
    return randomised(ImageDecoder(ImageVAEParams.tiny())), {"z": f32(1, 16, 4, 4)}


def audio_decoder():
    return randomised(AudioDecoder(AudioVAEParams.tiny())), {"z": f32(2, 8, 5)}


def stable_diffusion():
    sizes = {"block_out_channels": (32, 64), "norm_num_groups": 8}
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    return pytest.importorskip("diffusers").AutoencoderKL(**sizes, **blocks).decoder, {"sample": f32(1, 4, 8, 8)}


def wan():
    steps = {"dim_mult": [1, 2], "num_res_blocks": 1, "temperal_downsample": [False]}
    model = pytest.importorskip("diffusers").AutoencoderKLWan(base_dim=8, z_dim=4, **steps)
    return model.decoder, {"x": f32(1, 4, 2, 6, 6)}


def randomised(module):
    randomise(module, 0)
    return module


#: Places that each step replaces (upsampling, norms, convolutions, interpolation), and norms in convolutions.
DECODERS = {
    image_decoder: [0, 9, 4, 12, 3, 4],
    audio_decoder: [3, 24, 12, 26, 0, 12],
    stable_diffusion: [1, 14, 0, 3, 0, 0],
    wan: [1, 13, 0, 2, 0, 0],
}


def as_on_a_gpu(rewrite):
    """Return the step as it is where its kernels run."""

    def asked(misfit):
        return lambda form, device, *others: misfit(form, torch.device("cuda"), *others)

    passes = [replace(each, misfit=asked(each.misfit)) if hasattr(each, "misfit") else each for each in rewrite.passes]
    return replace(rewrite, passes=passes)


@pytest.mark.parametrize("build", DECODERS)
def test_decoders_compute_the_same(build, monkeypatch):
    for kernels in (forms, convolution):
        monkeypatch.setattr(kernels, "HAS_TRITON", True)
    torch.manual_seed(0)
    module, inputs = build()
    net = fixed_component(module, **inputs)
    with torch.no_grad():
        expected = module(**inputs)
        counts = []
        for step in shipped_recipe(STEPS).transforms:
            outcome = (as_on_a_gpu(step) if isinstance(step, Rewrite) else step).apply(module, net)
            module, counts = outcome.call, [*counts, outcome.changed]
        tables = len(module.traced[0].graph.find_nodes(op="call_function", target=fused_norm.norm_table))
        assert [*counts[1:], tables] == DECODERS[build]
        assert all(vector.is_contiguous() for vector in module.buffers() if vector.dim() == 1), "as kernels read them"
        assert_as_a_real_run_shows(module.graph_for(inputs), inputs)
        assert_same(module(**inputs), expected, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("build", DECODERS)
@pytest.mark.parametrize("compiled", ["", "+compile"])
def test_decoders_on_the_gpu(build, compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    launches = []  # of kernels that had not been compiled side by side before

    def on_compile(*, repr, is_manual_warmup, **_):
        if not is_manual_warmup:
            launches.append(repr)

    monkeypatch.setattr(pytest.importorskip("triton").knobs.runtime, "jit_cache_hook", on_compile)
    torch.manual_seed(0)
    module, inputs = build()
    module = module.cuda().eval()
    inputs = {name: x.cuda() for name, x in inputs.items()}
    with torch.no_grad():
        expected = module(**inputs)
        counted = [count for count in zip(STEPS.split("+")[1:], DECODERS[build][:5], strict=True) if count[1]]
        names = [*["channels_last"] * (build is not audio_decoder), *(name for name, _ in counted)]
        recipe = shipped_recipe("+".join(names) + compiled + "+cuda_graph")
        step = recipe(fixed_component(module, **inputs), tmp_path)
        assert_same(step.run(), expected, 1e-4)
    assert all(row.changed for row in step.recipe)
    assert launches == []
    step.close()
