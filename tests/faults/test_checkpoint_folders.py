"""Checkpoint folders of other libraries."""

import json
import shutil
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


def first_shard(folder: Path) -> Path:
    return min(folder.glob("*.safetensors"))


def rewrite(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def only_pickles(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.rename(file.with_suffix(".bin"))


INDEX = "model.safetensors.index.json"
NUMBERS = {"rope_type": "default", "rope_theta": 7.0}
DAMAGES = {
    "missing": (lambda folder: first_shard(folder).unlink(), "lacks 1 of the"),
    "cut": (
        lambda folder: first_shard(folder).write_bytes(first_shard(folder).read_bytes()[:99]),
        "damaged, cut short",
    ),
    "index": (lambda folder: (folder / INDEX).write_text('{"weight_map": {"a'), "not readable JSON"),
    "outside": (
        lambda folder: rewrite(folder / INDEX, weight_map={"a": "../model.safetensors"}),
        "lacks 1 of the 1 shards",
    ),
    "rotary": (
        lambda folder: rewrite(folder / "config.json", rope_parameters=NUMBERS),
        "does not fit LlamaStep: Its config.json differs (rope_parameters",
    ),
    "pickles": (only_pickles, "holds no safetensors: it holds .bin files"),
    "pipeline": (lambda folder: (folder / "model_index.json").write_text("{}"), "holds a pipeline"),
}


@promise("damaged checkpoint")
@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_folder(saved, tmp_path, damage, message):
    twin = shutil.copytree(saved, tmp_path / "twin")
    damage(twin)
    assert message in refused(f"component.{LLAMA}.checkpoint={twin}")


@promise("damaged checkpoint")
def test_another_size(saved):
    message = refused(f"component.{LLAMA}.checkpoint={saved}", f"component.{LLAMA}.tiny.module.num_hidden_layers=1")
    assert "num_hidden_layers: 2 there, 1 here" in message


@promise("damaged checkpoint")
def test_another_network(saved):
    message = refused(f"component.sd_turbo_unet.checkpoint={saved}", name="sd_turbo_unet")
    assert "does not fit UNetStep" in message
