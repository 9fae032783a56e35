"""The README is true: its numbers are those of the committed run, its make targets exist, its commands are accepted."""

import importlib.util
import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from profiling.cli.app import CONF, compose_config
from profiling.cli.config import read_config

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fill_readme():
    return script("fill_readme")


@pytest.fixture(scope="module")
def record_pages():
    return script("write_record")


def test_its_numbers_are_those_of_the_committed_run(fill_readme):
    for page in fill_readme.pages():
        text = page.read_text(encoding="utf-8")
        assert fill_readme.filled(text) == text, f"{page.name}: run python docs/fill_readme.py"


def test_the_reports_of_the_committed_runs_are_what_the_tool_renders(fill_readme):
    """A rule that changed must not leave an older verdict in a report."""
    reports = fill_readme.reports()
    old = [path.parent.name for path, text in reports.items() if path.read_text(encoding="utf-8") != text]
    assert len(reports) > 8
    assert not old, "run python docs/fill_readme.py"


def test_its_make_targets_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_commands_of_the_pages_and_of_the_help_are_accepted():
    """Hydra wants options with a dash before or after all keys."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "conf").glob("*.yaml")]
    targets = "|".join(path.stem for path in (ROOT / "conf").glob("*.yaml"))
    command = re.compile(rf"(?:python|\$\{{python:\}}) -m profiling\.(?:{targets})(?: +([^`\n]*))?")
    commands = {each for page in pages for each in command.findall(page.read_text(encoding="utf-8"))}
    assert len(commands) > 40
    for arguments in sorted(commands):
        if "KEY=" not in arguments:
            words = takewhile(lambda word: re.search("^-|=", word), shlex.split(arguments, comments=True))
            parsed = get_args_parser().parse_args(list(words))
            OverridesParser.create().parse_overrides(parsed.overrides)


def test_the_page_on_variants_lists_every_step_and_its_kind():
    page = (ROOT / "docs" / "variants.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \| .* \| (transform|compiler|option|capture) \|$", page, re.MULTILINE)
    listed = {name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}
    steps = read_config(compose_config("generic_forward", (), [CONF])).steps
    assert listed == {name: step.kind for name, step in steps.items()}


def test_the_generated_docs_are_fresh(record_pages):
    stale = [
        path for path, content in record_pages.files().items() if not path.is_file() or path.read_text() != content
    ]
    assert not stale, "run: python docs/write_record.py"


def test_every_field_says_what_it_means(record_pages):
    structs = record_pages.json_schema()["$defs"]
    silent = [
        f"{name}.{field}"
        for name, struct in structs.items()
        for field, content in struct["properties"].items()
        if field != "schema" and not content.get("description")
    ]
    assert not silent
