"""Folders of save_pretrained as checkpoints: shards, wrappers, tied weights, halves; and the numbers they give."""

import pytest
import torch
from library_folders import built, output, save
from test_conf import composed

from profiling.cli.config import read_config

pytest.importorskip("diffusers")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder of each library, in shards, and what the saved network returns."""
    return {name: save(name, tmp_path_factory.mktemp(name)) for name in ("llama_1b_step", "sd_turbo_unet")}


@pytest.mark.parametrize("name", ["llama_1b_step", "sd_turbo_unet"])
def test_a_sharded_folder_gives_the_numbers_of_what_was_saved(saved, name):
    folder, expected = saved[name]
    assert len(list(folder.glob("*.safetensors"))) > 1
    loaded = built(name, f"component.{name}.checkpoint={folder}")
    assert loaded.weights == str(folder)
    torch.testing.assert_close(output(loaded), expected)
    from_its_config = built(name, f"component.{name}.module.folder={folder}")
    torch.testing.assert_close(output(from_its_config), expected)


def test_a_folder_may_hold_the_half_that_is_not_measured(tmp_path):
    import diffusers

    (spec,) = read_config(composed("component=[sd_vae_decoder]")).components
    config = {key: value for key, value in spec.at("tiny").module.items() if key not in ("_target_", "folder")}
    whole = diffusers.AutoencoderKL(**config).eval()
    whole.save_pretrained(tmp_path)
    loaded = built("sd_vae_decoder", f"component.sd_vae_decoder.checkpoint={tmp_path}")
    inputs = loaded.component(0).inputs
    with torch.inference_mode():
        torch.testing.assert_close(output(loaded)[0], whole.decode(inputs["z"]).sample)


def test_the_libraries_name_wins_over_its_variants(saved, tmp_path):
    blueprint = built("sd_vae_decoder")
    blueprint.module.model.save_pretrained(tmp_path)
    (tmp_path / "diffusion_pytorch_model.fp16.safetensors").write_bytes(b"another dtype")
    loaded = built("sd_vae_decoder", f"component.sd_vae_decoder.checkpoint={tmp_path}")
    torch.testing.assert_close(output(loaded), output(blueprint))
