"""Frames generated with the cache, against one pass with a sliding block-causal mask over all frames, in float64."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from reference_data import relative_error
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

import profiling
from models.cached_world_model import CachedWorldModel, FrameOptions
from models.initialisation import randomise
from models.kernels.modulated_norm import modulated_norm
from models.world_model import WorldModel, WorldModelParams, world_model_inputs

SMALL = WorldModelParams(2, 8, 6, n_layers=2, n_heads=2, d_model=64, tokens_per_frame=5, n_buttons=3, n_frames=4)
#: In which the frame rotation does not repeat early: 7 frames and heads of 64.
WIDE = WorldModelParams(2, 8, 6, n_layers=3, n_heads=2, d_model=128, tokens_per_frame=5, n_buttons=3, n_frames=7)
#: With heads of 8, which have a single frequency an axis.
SHORTEST = WorldModelParams(1, 4, 3, n_layers=2, n_heads=2, d_model=16, tokens_per_frame=2, n_buttons=2, n_frames=2)
NAMES = ("x", "audio", "mouse", "btn")


def build(params, dtype=torch.float32, **options):
    model = CachedWorldModel(params, FrameOptions(**options))
    randomise(model, 3)
    return model.to(dtype).eval()


def draw_inputs(params, frames, batch=1, seed=0, dtype=torch.float32):
    """Return noise and controls of that many frames, [b, n, …]."""
    generator = torch.Generator().manual_seed(seed)
    inputs = world_model_inputs(
        SimpleNamespace(params=params), batch=batch, frames=frames, generator=generator, device="cpu", dtype=dtype
    )
    return [inputs[name] for name in NAMES]


def generate(model, sequence):
    """Generate the frames one after the other; return video and audio latents [b, n, …]."""
    frames = [model.frame(*(tensor[:, i] for tensor in sequence)) for i in range(sequence[0].shape[1])]
    return [torch.stack(parts, dim=1) for parts in zip(*frames, strict=True)]


def rotate_pairs(x, angles):
    """Rotate neighbouring dims of x [b, s, h, 2·k] by angles [s, k], through complex numbers."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[None, :, None]).flatten(-2)


def angles_of(params, frames):
    """Return the angles [n·m, head_dim/2] of tokens of the frames with these indices."""
    r = params.head_dim // 4
    freqs = torch.linspace(1, 128, r // 2, dtype=torch.float64).mul(math.pi).float().double()
    along_frames = torch.outer(frames.double() * 2 / max(1, params.n_frames - 1), freqs)
    along_tokens = torch.outer(torch.linspace(-1, 1, params.tokens_per_frame, dtype=torch.float64), freqs)
    n, m = len(frames), params.tokens_per_frame
    rest = torch.zeros(n, m, params.head_dim // 2 - r, dtype=torch.float64)
    parts = (along_frames[:, None].expand(-1, m, -1), along_tokens[None].expand(n, -1, -1), rest)
    return torch.cat(parts, -1).flatten(0, 1)


def one_pass(model, clean, noisy, t, controls, first=0):
    """Return the velocity of every noisy frame: each sees the clean frames before it in its window, and itself.

    The sequence holds all clean frames and then all noisy ones; `clean` and `noisy` are (video, audio).
    """
    p, n = model.params, clean[0].shape[1]
    x, audio = (torch.cat(pair, dim=1) for pair in zip(clean, noisy, strict=True))
    levels = torch.cat((torch.full((n,), model.options.t_commit), torch.full((n,), t))).expand(x.shape[0], -1)
    mouse, btn = (torch.cat((control, control), dim=1) for control in controls)
    activated = F.silu(model.t_embed(levels) + model.control_embed(mouse, btn)).unsqueeze(2)
    frames = torch.arange(first, first + n).repeat(2)
    is_noisy = torch.arange(2 * n) >= n
    age = frames[:, None] - frames[None]
    from_clean = ~is_noisy[None] & (age < p.n_frames) & torch.where(is_noisy[:, None], age > 0, age >= 0)
    sees = from_clean | (is_noisy[:, None] & is_noisy[None] & (age == 0))
    mask = sees.repeat_interleave(p.tokens_per_frame, 0).repeat_interleave(p.tokens_per_frame, 1)
    angles = angles_of(p, frames)
    window = WorldModel(p).to(x.dtype)  # whose layers that modulate are not merged
    window.load_state_dict(model.state_dict())
    tokens = model.embed(x, audio) + model.pos_enc.p[-p.tokens_per_frame :]
    for block in window.transformer.blocks:
        attn, vectors = block.attn, block.modulation(activated)
        qk, v = attn.project(modulated_norm(tokens, vectors.factor1, vectors.shift1).flatten(1, 2))
        q, k = (rotate_pairs(part, angles).transpose(1, 2) for part in qk.unbind(2))
        weights = (q @ k.transpose(2, 3) / math.sqrt(p.head_dim)).masked_fill(~mask, -math.inf).softmax(-1)
        attended = attn.out((weights @ v.transpose(1, 2)).transpose(1, 2).flatten(2))
        tokens = tokens + vectors.gate1 * attended.view_as(tokens)
        tokens = tokens + vectors.gate2 * block.mlp(modulated_norm(tokens, vectors.factor2, vectors.shift2))
    heads = (head.norm.modulation(activated[:, n:]) for head in (window.proj_out, window.audio_proj_out))
    return window.heads(tokens[:, n:], *heads)


@torch.no_grad()
def check(params, frames, first=0, **options):
    """Make frames in float32, then find that one pass a step over all of them, in float64, ends at the same latents."""
    model, sequence = build(params, **options), draw_inputs(params, frames, options.get("batch", 1))
    if first:
        past = draw_inputs(params, params.n_frames, options.get("batch", 1), seed=9)
        model.prefill(*past, first_frame=first - params.n_frames)
    clean = generate(model, sequence)
    exact = build(params, torch.float64, **options)
    noise, controls = [tensor.double() for tensor in sequence[:2]], [tensor.double() for tensor in sequence[2:]]
    finished, start = [tensor.double() for tensor in clean], 0
    if first:
        finished, noise, controls = (
            [torch.cat((before.double(), after), 1) for before, after in zip(past[half], part, strict=True)]
            for half, part in ((slice(2), finished), (slice(2), noise), (slice(2, 4), controls))
        )
        start = params.n_frames
    now, steps = noise, model.options.steps
    for step in range(steps):
        velocity = one_pass(exact, finished, now, 1 - step / steps, controls, first - start)
        now = [tensor - v / steps for tensor, v in zip(now, velocity, strict=True)]
    for actual, expected in zip(clean, now, strict=True):
        torch.testing.assert_close(actual.double(), expected[:, start:], rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("params", "frames", "options"),
    [
        (SMALL, 13, {"steps": 1}),
        (SMALL, 13, {"steps": 4}),
        (SHORTEST, 7, {"steps": 2}),
        (WIDE, 15, {"batch": 2}),
        (WIDE, 15, {"t_commit": 0.2, "steps": 2}),
        # After a window of the past at that place: only distances may matter.
        (WIDE, 21, {"first": 1_000_000_007, "steps": 2}),
    ],
    ids=str,
)
def test_more_than_two_windows_equal_one_pass(params, frames, options):
    check(params, frames, **options)


@pytest.mark.parametrize("options", [{}, {"steps": 3, "guidance": 1.5}], ids=str)
def test_fused_and_separate_commits_give_the_same_numbers(options):
    sequence = draw_inputs(SMALL, 10, batch=2)
    models = (build(SMALL, commit=commit, batch=2, **options) for commit in ("fused", "separate"))
    fused, separate = (generate(model, sequence) for model in models)
    torch.testing.assert_close(fused, separate, rtol=1e-4, atol=1e-5)


def test_guidance_of_zero_is_the_model_without_controls_of_one_the_model_itself_and_linear_in_its_scale():
    """Over three windows: the unconditional branch embeds mouse = 0 and buttons = 0, and caches its own keys."""
    sequence, options = draw_inputs(SMALL, 3 * SMALL.n_frames, batch=2), {"steps": 2, "batch": 2}
    for scale in (0.0, 1.0):
        expected = generate(build(SMALL, **options), [*sequence[:2], *(scale * control for control in sequence[2:])])
        guided = generate(build(SMALL, guidance=scale, **options), sequence)
        torch.testing.assert_close(guided, expected, rtol=1e-3, atol=1e-4)
    sequence = draw_inputs(SMALL, 1)
    scales = {scale: generate(build(SMALL, guidance=scale), sequence)[0] for scale in (0.0, 1.0, 3.0)}
    assert (scales[1.0] - scales[0.0]).abs().max() > 1e-2
    torch.testing.assert_close(scales[3.0], scales[0.0] + 3 * (scales[1.0] - scales[0.0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("count", "first"), [(3, 1), (1, 100), (0, 0), (4, -4)])
def test_prefill_that_leaves_slots_of_the_window_unwritten_is_refused(count, first):
    model, frames = build(SMALL), draw_inputs(SMALL, 4)
    with pytest.raises(ValueError, match="prefill"):
        model.prefill(*(tensor[:, :count] for tensor in frames), first_frame=first)


@pytest.mark.parametrize(("commit", "count"), [("fused", 1), ("fused", 4), ("fused", 11), ("separate", 5)])
def test_prefill_is_the_past_that_frames_make(commit, count):
    whole, begun = build(SMALL, commit=commit), build(SMALL, commit=commit)
    sequence = draw_inputs(SMALL, count + 6)
    frames = generate(whole, sequence)
    begun.prefill(*(frame[:, :count] for frame in frames), *(control[:, :count] for control in sequence[2:]))
    for one, other in zip(generate(begun, [tensor[:, count:] for tensor in sequence]), frames, strict=True):
        torch.testing.assert_close(one, other[:, count:], rtol=1e-4, atol=1e-5)


def test_a_denoising_call_is_guided_and_leaves_the_past_alone():
    options, sequence = {"guidance": 1.5, "batch": 2}, draw_inputs(SMALL, 9, batch=2)
    model, expected = build(SMALL, **options), build(SMALL, **options)
    for each in (model, expected):
        each.prefill(*(tensor[:, :6] for tensor in sequence))
    x, audio, mouse, btn = (tensor[:, 6] for tensor in sequence)
    first, again = (model.denoise(x, audio, torch.ones(2), mouse, btn) for _ in range(2))
    for one, other, noise, latent in zip(first, again, (x, audio), model.frame(x, audio, mouse, btn), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        torch.testing.assert_close(noise - one, latent, rtol=1e-4, atol=1e-5)
    later = generate(model, [tensor[:, 7:] for tensor in sequence])
    for one, other in zip(later, generate(expected, [tensor[:, 6:] for tensor in sequence]), strict=True):
        torch.testing.assert_close(one, other[:, 1:], rtol=1e-4, atol=1e-5)


def test_reset_starts_again_in_place():
    model, sequence = build(SMALL), draw_inputs(SMALL, 7)
    places = [tensor.data_ptr() for tensor in model.state_tensors()]
    first = generate(model, sequence)
    model.reset()
    torch.testing.assert_close(generate(model, sequence), first, rtol=0, atol=0)
    assert [tensor.data_ptr() for tensor in model.state_tensors()] == places


def test_one_compiled_graph_serves_every_frame():
    torch._dynamo.reset()
    counter = CompileCounter()
    sequence = draw_inputs(SMALL, 3 * SMALL.n_frames)
    expected = generate(build(SMALL, steps=2), sequence)
    model = build(SMALL, steps=2)
    compiled = torch.compile(model.frame, backend=counter, fullgraph=True)
    with torch.inference_mode():
        frames = [compiled(*(tensor[:, i] for tensor in sequence)) for i in range(3 * SMALL.n_frames)]
    assert counter.frame_count == 1
    for parts, other in zip(zip(*frames, strict=True), expected, strict=True):
        torch.testing.assert_close(torch.stack(parts, 1), other, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["compile", "cuda_graph", "compile+cuda_graph"])
def test_a_prepared_step_follows_eager_over_three_windows(variant):
    sequence = [tensor.cuda() for tensor in draw_inputs(SMALL, 3 * SMALL.n_frames)]
    calls = [dict(zip(NAMES, (tensor[:, i] for tensor in sequence), strict=True)) for i in range(3 * SMALL.n_frames)]
    model, twin = build(SMALL).cuda(), build(SMALL).cuda()
    with profiling.prepare(model, calls[:2], variant) as step:
        step.reset()
        twin.reset()
        assert max(relative_error(step(**call)[0], twin(**call)[0]) for call in calls) < 1e-4


@pytest.mark.parametrize("how", [lambda m: m.to(torch.bfloat16).double(), copy.deepcopy], ids=["cast", "copied"])
def test_merged_weights_are_loaded_and_saved_by_the_names_of_the_layers(how):
    """A state dict shares memory with the product's weight, so that what is written into it is loaded."""
    model, window = how(build(SMALL)), WorldModel(SMALL)
    randomise(window, 8)
    model.load_state_dict(window.state_dict())
    name, start = "transformer.blocks.1.adaln2.fc.weight", 9 * SMALL.d_model
    saved, linear = model.state_dict(), model.modulation.linear
    expected = window.state_dict()[name].to(linear.weight.dtype)
    torch.testing.assert_close(saved[name], expected, rtol=0, atol=0)
    torch.testing.assert_close(linear.weight[start : start + 2 * SMALL.d_model], expected, rtol=0, atol=0)
    saved[name].fill_(3)
    assert (linear.weight[start : start + 2 * SMALL.d_model] == 3).all()


def test_a_state_dict_that_does_not_fit_is_refused_by_the_names_of_the_layers():
    model, state_dict = build(SMALL), WorldModel(SMALL).state_dict()
    lost = state_dict.pop("transformer.blocks.1.gate1.fc_c.bias")
    state_dict["proj_out.norm.fc.weight"] = torch.zeros(3, SMALL.d_model)
    with pytest.raises(RuntimeError, match="Missing key") as error:
        model.load_state_dict(state_dict)
    assert 'Missing key(s) in state_dict: "transformer.blocks.1.gate1.fc_c.bias"' in str(error.value)
    assert "size mismatch for proj_out.norm.fc.weight: [3, 64], and [128, 64] is needed" in str(error.value)
    state_dict["transformer.blocks.1.gate1.fc_c.bias"] = lost
    del state_dict["proj_out.norm.fc.weight"]
    before = model.state_dict()["proj_out.norm.fc.weight"].clone()
    assert model.load_state_dict(state_dict, strict=False).missing_keys == ["proj_out.norm.fc.weight"]
    assert torch.equal(model.state_dict()["proj_out.norm.fc.weight"], before)


def test_a_part_of_a_larger_module_and_a_model_on_the_meta_device_are_loaded_too():
    given = torch.nn.ModuleDict({"net": build(SMALL)})
    randomise(given, 5)
    for made, assign in ((lambda: build(SMALL), False), (lambda: CachedWorldModel(SMALL, FrameOptions()), True)):
        with torch.device("meta" if assign else "cpu"):
            whole = torch.nn.ModuleDict({"net": made()})
        whole.load_state_dict(given.state_dict(), assign=assign)
        assert "net.transformer.blocks.0.adaln1.fc.weight" in whole.state_dict()
        assert torch.equal(whole["net"].modulation.linear.weight, given["net"].modulation.linear.weight)


@pytest.mark.parametrize("weights", ["int8", "float8_e4m3"])
def test_weights_are_quantised_once_in_half_precision_and_a_reset_moves_nothing(weights):
    """A CUDA graph captured after it keeps reading these tensors."""
    model, plain = build(WIDE, weights=weights), build(WIDE).bfloat16()
    model.quantise()
    model.to(torch.bfloat16)
    assert type(model.modulation.linear) is torch.nn.Linear, "neither float32 nor a cast quantises"
    model.quantise()
    assert model.modulation.linear.stored.itemsize == 1
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    assert before.keys() > {"proj_out.norm.fc.stored", "proj_out.norm.fc.scale", "proj_out.norm.fc.bias"}
    model.quantise()
    model.reset()
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == before
    other = build(WIDE, weights=weights).bfloat16()
    randomise(other, 4)
    other.quantise()
    other.load_state_dict(model.state_dict())
    sequence = [tensor.bfloat16() for tensor in draw_inputs(WIDE, 4)]
    eight = generate(model, sequence)
    assert torch.equal(generate(other, sequence)[0], eight[0])
    assert 0 < relative_error(eight[0], generate(plain, sequence)[0]) < 0.1


def test_a_state_dict_of_weights_that_torchao_quantised():
    quantization = pytest.importorskip("torchao.quantization")
    model = build(WIDE).requires_grad_(False)
    expected = model.state_dict()["proj_out.norm.fc.weight"].clone()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig(version=2, set_inductor_config=False))
    rows = model.state_dict()["proj_out.norm.fc.weight"]
    assert rows.shape == expected.shape
    assert relative_error(rows.dequantize(), expected) < 0.02


@pytest.mark.parametrize(
    ("options", "word"),
    [({"steps": 0}, "steps"), ({"commit": "x"}, "fused"), ({"t_commit": 2.0}, "t_commit"), ({"kernel": "x"}, "sdpa")],
    ids=str,
)
def test_wrong_options_say_what_there_is(options, word):
    with pytest.raises(ValueError, match=word):
        FrameOptions(**options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("guidance", [None, 1.5])
@torch.inference_mode()
def test_triton_is_as_near_to_float64_as_sdpa(dtype, guidance):
    """Over three windows; each frame follows the same past, so that errors do not accumulate."""
    # Exact in the dtype: a mouse movement rounded by the test would be another one, and not the network's error.
    sequence, error = [tensor.to(dtype).float() for tensor in draw_inputs(WIDE, 21)], {}
    exact = build(WIDE, torch.float64, guidance=guidance)
    past = [torch.stack(parts, 1) for parts in zip(*[exact.frame(*(t[:, i].double() for t in sequence)) for i in range(21)], strict=True)]  # fmt: skip # noqa: E501
    for kernel in ("triton", "sdpa"):
        model = build(WIDE, guidance=guidance, kernel=kernel).to(dtype).cuda()
        worst = 0.0
        for count in (3, 7, 20):
            model.reset()
            controls = [tensor[:, :count].to(dtype).cuda() for tensor in sequence[2:]]
            model.prefill(*(tensor[:, :count].to(dtype).cuda() for tensor in past), *controls)
            frame = model.frame(*(tensor[:, count].to(dtype).cuda() for tensor in sequence))
            for actual, frames in zip(frame, past, strict=True):
                expected = frames[:, count]
                worst = max(worst, float((actual.cpu().double() - expected).norm() / expected.norm()))
        error[kernel] = worst
    assert error["triton"] < max(2 * error["sdpa"], 1e-3)
    assert error["sdpa"] < 0.1
