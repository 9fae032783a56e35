"""Names, shapes and counts of parameters, which decide whether a published checkpoint loads."""

import pytest
import torch
from reference_data import FULL_SIZE, STATE_DICTS, factory_of

PUBLISHED = {
    "world_model_1b": 1_093_823_296,
    "world_model_200m": 262_250_816,
    "image_decoder": 73_355_776,
    "audio_decoder": 20_950_528,
}


def trained(module):
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("name", STATE_DICTS)
def test_names_and_shapes_are_the_published_ones(name):
    entry = STATE_DICTS[name]
    with torch.device("meta"):
        module = factory_of(name)(**entry["config"])
    assert {key: list(value.shape) for key, value in module.state_dict().items()} == entry["state_dict"]
    assert trained(module) == entry["trainable_parameters"]


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_published_counts(name, count):
    config, factory, _ = FULL_SIZE[name]
    with torch.device("meta"):
        assert trained(factory(**STATE_DICTS[config]["config"])) == count
