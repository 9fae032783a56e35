"""Frequencies and tables keep fp32, and hold the right values after every way of making a model."""

import pytest
import torch
from reference_data import flat, tiny_network
from torch import nn

from models.initialisation import randomise
from models.world_model import WorldModel, WorldModelParams


def constants(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def build(seed=0):
    module = WorldModel(WorldModelParams.tiny())
    randomise(module, seed)
    return module


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("back", [False, True])
def test_casting_rounds_the_weights_alone(dtype, back):
    module = build()
    before = constants(module)
    module.to(dtype)
    assert {parameter.dtype for parameter in module.parameters()} == {dtype}
    if back:
        module.float()
    after = constants(module)
    assert before.keys() == after.keys()
    assert (
        len(before) == 2 + 3 + 2
    )  # frequencies of two layers, tables and the turn of a frame, two sinusoidal embeddings
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=0)


def test_half_keeps_them_too():
    module = build().half()
    dtypes = {name.rpartition(".")[2]: buffer.dtype for name, buffer in module.named_buffers()}
    assert dtypes.pop("turns_per_frame") == torch.float64
    assert set(dtypes.values()) == {torch.float32}


def test_meta_then_to_empty_then_load():
    source = build()
    with torch.device("meta"):
        module = WorldModel(WorldModelParams.tiny())
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"meta"}
    module.bfloat16().to_empty(device="cpu").float().load_state_dict(source.state_dict())
    for name, value in constants(source).items():
        torch.testing.assert_close(dict(module.named_buffers())[name], value, rtol=0, atol=0)


def test_meta_then_load_by_assignment():
    source = build()
    with torch.device("meta"):
        module = WorldModel(WorldModelParams.tiny())
    module.load_state_dict(source.state_dict(), assign=True)
    tables = dict(module.transformer.rotary.named_buffers())
    for name, value in source.transformer.rotary.named_buffers():
        torch.testing.assert_close(tables[name], value, rtol=0, atol=0)


def test_tables_follow_loaded_frequencies():
    module, inputs = tiny_network("world_model")
    state = module.state_dict()
    before = flat(module(**inputs))[0]
    address = module.transformer.rotary.frame_table.data_ptr()
    changed = {name: value * 1.5 if name.endswith(".freqs") else value for name, value in state.items()}
    module.load_state_dict(changed)
    assert module.transformer.rotary.frame_table.data_ptr() == address  # a captured graph reads it there
    assert not torch.allclose(flat(module(**inputs))[0], before)
    module.load_state_dict({name: value / 1.5 if name.endswith(".freqs") else value for name, value in changed.items()})
    torch.testing.assert_close(flat(module(**inputs))[0], before, rtol=1e-3, atol=2e-4)


def test_layers_that_disagree_are_refused():
    module = build()
    state = module.state_dict()
    state["transformer.blocks.1.attn.rope.pos_emb.freqs"] = state["transformer.blocks.1.attn.rope.pos_emb.freqs"] + 1
    with pytest.raises(ValueError, match=r"blocks\.1\.attn\.rope\.pos_emb\.freqs differs"):
        module.load_state_dict(state)
