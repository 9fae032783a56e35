"""Every YAML composes, every `_target_` resolves, and the sizes are those that were published."""

import importlib

import pytest
from omegaconf import OmegaConf

from models.audio_vae import AudioVAEParams
from models.image_vae import ImageVAEParams
from models.world_model import WorldModelParams
from profiling.cli.app import CONF, compose_config
from profiling.cli.config import read_component, read_config
from profiling.cli.groups import named_recipes, short_names
from profiling.components.spec import Settings
from profiling.errors import InputError

GROUPS = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in ("component", "metric")}


def composed(*overrides, target="generic_forward"):
    return compose_config(target, overrides, [CONF])


def targets(node):
    if isinstance(node, dict):
        if "_target_" in node:
            yield node["_target_"]
        for value in node.values():
            yield from targets(value)


def check_targets(node):
    for target in targets(OmegaConf.to_container(node, resolve=True)):
        module, _, attribute = target.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), target


@pytest.mark.parametrize(
    ("defaults", "variants"),
    [
        ("[generic_forward, _self_]", ["baseline", "compile", "cuda_graph", "compile+cuda_graph"]),
        (
            "[generic_forward, {override variant: [baseline, channels_last+compile]}, _self_]",
            ["baseline", "channels_last+compile"],
        ),
    ],
)
def test_a_target_of_the_user_lies_in_the_config_folder_and_may_be_based_on_another(tmp_path, defaults, variants):
    (tmp_path / "mine.yaml").write_text(f"defaults: {defaults}\nseed: 7\n")
    cfg = compose_config("mine", ["component=[world_model]"], [CONF, tmp_path])
    assert (list(cfg.variant), cfg.seed) == (variants, 7)


@pytest.mark.parametrize("target", sorted(path.stem for path in CONF.glob("*.yaml")))
def test_every_target_composes_and_its_targets_exist(target):
    check_targets(composed(target=target))


def test_every_optimizer_waits_for_its_parameters():
    for path in (CONF / "optimizer").glob("*.yaml"):
        optimizer = composed(f"optimizer={path.stem}", target="training_step").optimizer
        assert optimizer._partial_ is True, path
        assert optimizer.lr > 0, path


def test_every_step_and_short_name_is_a_recipe_whose_targets_exist():
    steps = read_config(composed()).steps
    recipes = named_recipes([*short_names(), *(name for name, step in steps.items() if not step.rules.needs)])
    for recipe in recipes.values():
        check_targets(OmegaConf.create(recipe))


def test_everything_together_is_a_run_and_every_target_exists():
    chosen = (f"{group}=[{','.join(names)}]" for group, names in GROUPS.items())
    cfg = composed(*chosen, f"variant=[{','.join(short_names())}]")
    for group, names in GROUPS.items():
        assert sorted(cfg[group]) == names, "the file's top key is its own name"
        check_targets(cfg[group])
    jobs = read_config(cfg).jobs("t", Settings(device="cpu", dtype="float32", scale="tiny"), "run")
    assert len(jobs) == len(GROUPS["component"]) * len(short_names())


def test_the_default_is_the_main_job_whose_frames_per_call_follow_the_inputs():
    config = read_config(composed())
    frames = {component.name: component.frames_per_call for component in config.components}
    assert frames == {"world_model": 1, "image_decoder": 1, "audio_decoder": 120}
    assert list(config.variants) == ["baseline", "compile", "cuda_graph", "compile+cuda_graph"]
    more = read_config(composed("component.audio_decoder.inputs.frames=60", "component.image_decoder.inputs.batch=4"))
    assert [component.frames_per_call for component in more.components] == [1, 4, 60]


FULL = {
    "world_model": WorldModelParams.full(),
    "world_model_200m": WorldModelParams.full_200m(),
    "image_decoder": ImageVAEParams.full(),
    "image_encoder": ImageVAEParams.full(),
    "audio_decoder": AudioVAEParams.full(),
    "audio_encoder": AudioVAEParams.full(),
}


def test_full_size_is_the_published_one():
    for component in read_config(composed(f"component=[{','.join(FULL)}]")).components:
        config = {key: value for key, value in component.module.items() if key != "_target_"}
        assert type(FULL[component.name]).from_config(config) == FULL[component.name], component.name


def test_a_component_with_a_folder_says_that_its_factory_loads_the_weights():
    for component in read_config(composed(f"component=[{','.join(GROUPS['component'])}]")).components:
        if "folder" in component.module:
            assert component.pretrained is None, component.name
            folder = f"component.{component.name}.module.folder=/saved"
            (spec,) = read_config(composed(f"component=[{component.name}]", folder)).components
            assert spec.pretrained == "/saved", component.name


def test_tiny_changes_only_keys_that_are_there():
    for component in read_config(composed(f"component=[{','.join(GROUPS['component'])}]")).components:
        tiny = component.at("tiny")
        assert tiny != component, component.name
        if not component.module["_target_"].startswith(("models.hub", "models.streaming")):  # keys of a library
            assert tiny.module.keys() == component.module.keys(), component.name


@pytest.mark.parametrize(("key", "meant"), [("modul", "module"), ("input", "inputs")])
def test_a_misspelt_key_in_the_place_of_a_required_one_gets_the_near_name(key, meant):
    node = {"module": {"_target_": "n"}, "inputs": {"x": {"shape": [1]}}}
    node[key] = node.pop(meant)
    with pytest.raises(InputError, match=rf"component\.net\.{key} is unknown.* Did you mean '{meant}'\?"):
        read_component("net", node)
