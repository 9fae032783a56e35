"""The README is true: its numbers are those of the committed run, its tree is the one on disk, its keys exist."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_numbers_are_those_of_the_committed_run():
    spec = importlib.util.spec_from_file_location("fill_readme", ROOT / "docs" / "fill_readme.py")
    fill_readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fill_readme)
    for page in fill_readme.pages():
        text = page.read_text(encoding="utf-8")
        assert fill_readme.filled(text) == text, f"{page.name}: run python docs/fill_readme.py"
    assert "world_model" in fill_readme.results_block()


def test_its_make_targets_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)) | set(
        re.findall(r"`make ([a-z-]+)", README)
    ):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
