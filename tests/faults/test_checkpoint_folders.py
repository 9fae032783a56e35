"""Checkpoint folders of other libraries."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from library_folders import built, save
from table import promise

from profiling.errors import InputError

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

LLAMA = "llama_1b_step"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder of a tiny Llama, in shards."""
    return save(LLAMA, tmp_path_factory.mktemp(LLAMA))[0]


def refused(*overrides: str, name: str = LLAMA) -> str:
    """Return the one line with which a component's weights are refused."""
    with pytest.raises(InputError) as error:
        built(name, *overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def cut_a_shard(folder: Path) -> None:
    shard = min(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:99])


def other_rotation(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 7.0}
    (folder / "config.json").write_text(json.dumps(config))


def only_pickles(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.rename(file.with_suffix(".bin"))


def writes(file: str, text: str) -> Callable[[Path], int]:
    return lambda folder: (folder / file).write_text(text)


INDEX = "model.safetensors.index.json"
DAMAGES = {
    "missing": (lambda folder: min(folder.glob("*.safetensors")).unlink(), "lacks 1 of the"),
    "cut": (cut_a_shard, "damaged, cut short"),
    "index": (writes(INDEX, '{"weight_map": {"a'), "not readable JSON"),
    "outside": (writes(INDEX, '{"weight_map": {"a": "../model.safetensors"}}'), "lacks 1 of the 1 shards"),
    "rotary": (other_rotation, "does not fit LlamaStep: Its config.json differs (rope_parameters"),
    "pickles": (only_pickles, "holds no safetensors: it holds .bin files"),
    "pipeline": (writes("model_index.json", "{}"), "holds a pipeline"),
}


@promise("damaged checkpoint")
@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_folder(saved, tmp_path, damage, message):
    twin = shutil.copytree(saved, tmp_path / "twin")
    damage(twin)
    assert message in refused(f"component.{LLAMA}.checkpoint={twin}")


@promise("damaged checkpoint")
def test_another_size_or_network(saved):
    message = refused(f"component.{LLAMA}.checkpoint={saved}", f"component.{LLAMA}.tiny.module.num_hidden_layers=1")
    assert "num_hidden_layers: 2 there, 1 here" in message
    message = refused(f"component.sd_turbo_unet.checkpoint={saved}", name="sd_turbo_unet")
    assert "does not fit UNetStep" in message
