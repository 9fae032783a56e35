"""What a command line shows instead of running: help, the config, and how a shell completes a word."""

import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from profiling.cli.app import launch

OUTSIDE = Path(__file__).parents[2] / "data/outside"


@pytest.fixture
def shown(monkeypatch, capsys):
    def show(*words):
        monkeypatch.setattr(sys, "argv", ["profiling", *words])
        assert launch("generic_forward", lambda cfg, folder: pytest.fail("it runs")) == 0
        return capsys.readouterr().out

    return show


def test_the_config_is_the_one_that_a_run_would_have(shown):
    """With the user's own component, an expression of steps, and a flag behind the overrides."""
    config = OmegaConf.create(
        shown(f"--config-dir={OUTSIDE}", "component=[net]", "variant=[channels_last+compile]", "--cfg=job")
    )
    assert list(config.component) == ["net"]
    assert list(config.variant) == ["channels_last+compile"]
    assert "hydra" not in config


def test_a_config_group_of_the_users_own_is_added_with_a_plus(shown, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "quick.yaml").write_text("# @package _global_\nseconds: 3\n")
    assert OmegaConf.create(shown(f"--config-dir={tmp_path}", "+experiment=quick", "--cfg=job")).seconds == 3


@pytest.mark.parametrize(("word", "completed"), [("dev", "device="), ("dtype=", "dtype=auto")])
def test_a_shell_completes_a_word(shown, monkeypatch, word, completed):
    line = f"profile component=[audio_decoder] {word}"
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert completed in shown("--shell-completion", "query=bash").split()


@pytest.mark.parametrize("words", [(), ("install",), ("install=tcsh",), ("query=bash",)])
def test_a_completion_that_hydra_cannot_make_is_one_line(monkeypatch, capsys, words):
    monkeypatch.delenv("COMP_LINE", raising=False)
    monkeypatch.setattr(sys, "argv", ["profiling", "--shell-completion", *words])
    assert launch("generic_forward", lambda cfg, folder: pytest.fail("it runs")) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_lists_components_and_steps(shown):
    text = shown("--help", f"--config-dir={OUTSIDE}")
    assert {"image_decoder", "channels_last", "device=auto"} <= {*text.split()}
