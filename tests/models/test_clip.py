"""CLIP's towers: their published sizes, the library's own numbers, inputs that reach the pooling, and capture."""

from pathlib import Path

import pytest
import torch
import yaml
from reference_data import CLIP_TEXT, CLIP_VISION, relative_error, tiny_network
from test_capturable import OneDeviceMode, check_replay
from torch.nn import functional as F

from models.clip import build_clip_text, build_clip_vision, clip_text_inputs, clip_vision_inputs
from models.hub import build_resnet_training

transformers = pytest.importorskip("transformers")

BUILD = {"clip_text": build_clip_text, "clip_vision": build_clip_vision}
CONF = Path(__file__).parents[2] / "conf" / "component"


def tiny_tower(name, dtype=torch.float32, device="cpu", **config):
    return tiny_network(name, dtype, device, **config)[0]


def inputs_of(name, module, dtype=torch.float32, device="cpu", seed=0, batch=3, tokens=77):
    options = {"generator": torch.Generator().manual_seed(seed), "device": device, "dtype": dtype, "batch": batch}
    if name == "clip_text":
        return clip_text_inputs(module, tokens=tokens, **options)
    return clip_vision_inputs(module, **options)


@pytest.mark.parametrize(
    ("build", "published"),
    [(build_clip_text, 123_650_304), (build_clip_vision, 303_966_208), (build_resnet_training, 25_557_032)],
)
def test_the_default_and_the_yaml_are_the_published_network(build, published):
    """Towers of ViT-L/14, and ResNet-50."""
    name = build.__name__.removeprefix("build_").replace("resnet", "resnet50")
    node = yaml.safe_load((CONF / f"{name}.yaml").read_text())[name]["module"]
    assert node.pop("_target_") == f"{build.__module__}.{build.__name__}"
    with torch.device("meta"):
        module, named = build(), build(**node)
    config = module.model.config
    assert sum(p.numel() for p in module.parameters()) == published
    if name.startswith("clip"):
        assert (config.hidden_act, config._attn_implementation) == ("quick_gelu", "sdpa")
    assert named.model.config.to_dict() == config.to_dict()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a folder of both towers together, and its model."""
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={**CLIP_TEXT, "eos_token_id": 127},
        vision_config={**CLIP_VISION, "patch_size": 14},
        projection_dim=CLIP_TEXT["projection_dim"],
    )
    model = transformers.CLIPModel(config).eval()
    folder = tmp_path_factory.mktemp("clip")
    model.save_pretrained(folder)
    return str(folder), model


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_tower_of_a_folder_gives_the_numbers_of_the_whole_model_and_stays_on_its_device(whole, implementation):
    folder, model = whole
    text = build_clip_text(folder, attn_implementation=implementation).eval()
    vision = build_clip_vision(folder, attn_implementation=implementation).eval()
    assert text.model.config._attn_implementation == vision.model.config._attn_implementation == implementation
    ids, pictures = inputs_of("clip_text", text), inputs_of("clip_vision", vision)
    with torch.inference_mode():
        expected = model(**ids, **pictures)
        torch.testing.assert_close(F.normalize(text(**ids)), expected.text_embeds, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(F.normalize(vision(**pictures)), expected.image_embeds, rtol=1e-4, atol=1e-5)
    for tower, given in ((text, ids), (vision, pictures)):
        with torch.no_grad(), OneDeviceMode("meta"):
            tower.to("meta")(**{key: value.to("meta") for key, value in given.items()})


def test_what_is_incomplete_or_does_not_fit_is_refused(whole, tmp_path):
    _, model = whole
    transformers.CLIPTextModel(model.config.text_config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"1 weights are missing, for example text_projection\.weight"):
        build_clip_text(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no_such"):
        build_clip_vision("no_such")
    for tokens in (1, 78):
        with pytest.raises(ValueError, match=f"tokens={tokens}: must be 2"):
            inputs_of("clip_text", tiny_tower("clip_text"), tokens=tokens)


@pytest.mark.parametrize("build", [*BUILD.values(), build_resnet_training])
def test_without_the_library_its_name_is_told(build, without_library):
    without_library("transformers")
    with pytest.raises(ModuleNotFoundError) as error:
        build()
    assert error.value.name == "transformers"


@pytest.mark.parametrize("tokens", [2, 77])
def test_texts_start_end_and_are_padded(tokens):
    module = tiny_tower("clip_text")
    ids = inputs_of("clip_text", module, batch=2000, tokens=tokens)["input_ids"]
    assert ids.dtype == torch.int64
    assert ids.shape == (2000, tokens)
    ends = [row.index(127) for row in ids.tolist()]
    for row, end in zip(ids.tolist(), ends, strict=True):
        assert row[0] == 126
        assert max(row[1:end], default=0) < 126
        assert set(row[end:]) == {127}
    assert set(ends) == set(range(1, tokens)), "every place is one where a text can end"


@pytest.mark.parametrize("eos", [127, 2], ids=["by id", "legacy: highest id"])
def test_the_text_up_to_its_end_makes_the_embedding(eos):
    module = tiny_tower("clip_text", eos_token_id=eos)
    ids = inputs_of("clip_text", module)["input_ids"]
    ids[:, 1:10], ids[:, 10], ids[:, 11:] = 5, 127, 127
    before, after = ids.clone(), ids.clone()
    before[:, 4], after[:, 12] = 77, 77
    with torch.inference_mode():
        expected = module(ids)
        assert relative_error(module(before), expected) > 1e-2
        torch.testing.assert_close(module(after), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_eager_attention_replays(name, dtype):
    module = tiny_tower(name, dtype, "cuda", attn_implementation="eager")
    inputs, others = (inputs_of(name, module, dtype, "cuda", seed) for seed in (0, 1))
    with torch.inference_mode():
        check_replay(module, inputs, others)
