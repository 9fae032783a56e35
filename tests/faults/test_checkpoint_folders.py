"""Checkpoint folders of other libraries."""

import json
import shutil
from pathlib import Path

import pytest
from library_folders import built, save

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


def fault(planted, damage, message, happens="one line with the file's name, exit code 2"):
    mark = pytest.mark.fault(planted, happens=happens, kept="the run folder; nothing is measured")
    return pytest.param(damage, message, marks=mark, id=planted)


INDEX = "model.safetensors.index.json"
NUMBERS = {"rope_type": "default", "rope_theta": 7.0}
PIPELINE = "one line with the folders to choose from, exit code 2"
DAMAGES = {
    "missing": lambda folder: first_shard(folder).unlink(),
    "cut": lambda folder: first_shard(folder).write_bytes(first_shard(folder).read_bytes()[:99]),
    "index": lambda folder: (folder / INDEX).write_text('{"weight_map": {"a'),
    "outside": lambda folder: rewrite(folder / INDEX, weight_map={"a": "../model.safetensors"}),
    "rotary": lambda folder: rewrite(folder / "config.json", rope_parameters=NUMBERS),
    "pickles": only_pickles,
    "pipeline": lambda folder: (folder / "model_index.json").write_text("{}"),
}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        fault("a shard of a folder is missing", "missing", "lacks 1 of the"),
        fault("a shard is cut short", "cut", "damaged, cut short"),
        fault("the index of the shards is cut short", "index", "not readable JSON"),
        fault("the index names a file outside the folder", "outside", "lacks 1 of the 1 shards"),
        fault(
            "the folder's network has equal shapes and another rotary base",
            "rotary",
            "does not fit LlamaStep: Its config.json differs (rope_parameters",
            "one line with both values, exit code 2",
        ),
        fault("the folder holds pickles alone", "pickles", "holds no safetensors: it holds .bin files"),
        fault("the folder is a whole pipeline", "pipeline", "holds a pipeline", PIPELINE),
    ],
)
def test_a_damaged_folder(saved, tmp_path, damage, message):
    twin = shutil.copytree(saved, tmp_path / "twin")
    DAMAGES[damage](twin)
    assert message in refused(f"component.{LLAMA}.checkpoint={twin}")


@pytest.mark.fault(
    "the component has fewer layers than the folder",
    happens="one line with both numbers, exit code 2",
    kept="the run folder; nothing is measured",
)
def test_another_size(saved):
    message = refused(f"component.{LLAMA}.checkpoint={saved}", f"component.{LLAMA}.tiny.module.num_hidden_layers=1")
    assert "num_hidden_layers: 2 there, 1 here" in message


@pytest.mark.fault(
    "the folder is of another network",
    happens="one line that says what is missing, exit code 2",
    kept="the run folder; nothing is measured",
)
def test_another_network(saved):
    message = refused(f"component.sd_turbo_unet.checkpoint={saved}", name="sd_turbo_unet")
    assert "does not fit UNetStep" in message
