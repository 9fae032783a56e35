"""Checkouts: worktrees of revisions come and go, and a process imports the user's code from one of them only."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from as_user import ROOT
from planted_repository import commit, git

from profiling.compare.worktrees import opened


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with two commits, which is the working directory."""
    folder = tmp_path / "repository"
    for text in ("one", "two"):
        commit(folder, {"text.txt": text, "sub/text.txt": f"sub {text}"})
    monkeypatch.chdir(folder)
    return folder


def texts(checkouts, name="text.txt"):
    return [Path(checkout.folder, name).read_text() for checkout in checkouts]


def is_clean(repository):
    return len(git(repository, "worktree", "list").splitlines()) == 1 and not git(repository, "status", "--porcelain")


def test_revisions_are_in_worktrees_while_they_are_open_whatever_ends_that(repository):
    ends = (contextlib.nullcontext(), pytest.raises(KeyboardInterrupt), pytest.raises(OSError, match="planted"))
    for end, error in zip(ends, (None, KeyboardInterrupt(), OSError("planted")), strict=True):
        with end, opened(("HEAD~1", "main")) as checkouts:
            assert texts(checkouts) == ["one", "two"]
            assert [checkout.name for checkout in checkouts] == ["A (HEAD~1)", "B (main)"]
            assert len(git(repository, "worktree", "list").splitlines()) == 3
            folders = [checkout.root for checkout in checkouts]
            Path(folders[0], "made_by_the_cell").write_text("")
            if error is not None:
                raise error
        assert not any(map(os.path.exists, folders))
        assert is_clean(repository)


def test_a_folder_is_used_as_it_is_and_each_revision_has_the_working_directory(repository, monkeypatch):
    (repository / "text.txt").write_text("not committed")
    with opened(("HEAD", ".")) as checkouts:
        assert texts(checkouts) == ["two", "not committed"]
        assert checkouts[1].root == str(repository)
        assert checkouts[0].others == (str(repository),)
    with opened(("sub", ".")) as checkouts:
        assert [checkout.root for checkout in checkouts] == [str(repository / "sub"), str(repository)]
    monkeypatch.chdir(repository / "sub")
    with opened(("HEAD~1", ".")) as checkouts:
        assert texts(checkouts) == ["sub one", "sub two"]
        assert checkouts[1].root == str(repository)
    assert (repository / "text.txt").read_text() == "not committed"


def test_two_folders_need_no_git(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with opened(("a", "b")) as checkouts:
        assert [checkout.root for checkout in checkouts] == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_hooks_of_the_user_do_not_run_and_it_works_inside_a_hook_of_another_repository(repository, monkeypatch):
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {repository / 'ran'}\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    with opened(("HEAD~1", "HEAD")) as checkouts:
        assert texts(checkouts) == ["one", "two"]
    monkeypatch.delenv("GIT_DIR")
    assert is_clean(repository)


# What a process imports.

_SCRIPT = """
import json, sys
from dataclasses import asdict
import shared, profiling.run.checkouts
from profiling.run.checkouts import Checkout
checkout = Checkout(**json.loads(sys.argv[1]))
checkout.enter()
import shared as again, user_code, profiling.errors
{then}
print(json.dumps([again.PLACE, user_code.PLACE, profiling.errors.__file__]))
"""


def imported(checkout, cwd, path, then="checkout.check_imports()"):
    """What a process in `cwd` imports that has imported the tool and the user's code before it enters the checkout."""
    given = json.dumps({name: getattr(checkout, name) for name in ("name", "folder", "root", "others")})
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(then=then), given],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def code(folder, place):
    """Files of a revision, which has a package of the tool's name, too."""
    files = {f"{folder}{name}.py": f"PLACE = {place!r}\n" for name in ("shared", "user_code")}
    return files | {"profiling/__init__.py": "raise RuntimeError\n"}


@pytest.mark.parametrize("layout", ["", "src/"])
def test_a_process_imports_the_users_code_from_the_checkout_and_the_tool_as_before(tmp_path, monkeypatch, layout):
    repository = tmp_path / "repository"
    for place in ("one", "two"):
        commit(repository, code(layout, place))
    for name in (f"{layout}shared.py", f"{layout}user_code.py"):
        (repository / name).write_text("PLACE = 'not committed'\n")
    (repository / "profiling" / "__init__.py").unlink()  # the revisions have it
    monkeypatch.chdir(repository)
    with opened(("HEAD~1", "HEAD")) as checkouts:
        for checkout, place in zip(checkouts, ("one", "two"), strict=True):
            found = imported(checkout, repository, [ROOT, repository / layout])
            assert found == [place, place, str(ROOT / "profiling" / "errors.py")]
    with opened(("HEAD", ".")) as checkouts:
        assert imported(checkouts[1], repository, [ROOT, repository / layout])[:2] == ["not committed"] * 2


@pytest.fixture
def code_of_one(tmp_path, monkeypatch):
    """A repository with one revision of the code, which is the working directory."""
    folder = tmp_path / "repository"
    commit(folder, {**code("", "one"), "elsewhere/found.py": ""})
    (folder / "profiling" / "__init__.py").unlink()
    monkeypatch.chdir(folder)
    return folder


def test_a_module_that_a_revision_lacks_is_not_taken_from_the_working_tree(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    commit(repository, {"src/shared.py": "PLACE = 'one'\n", "src/user_code.py": "PLACE = 'one'\n"})
    commit(repository, {"src/user_code.py": None})
    (repository / "src" / "user_code.py").write_text("PLACE = 'not committed'\n")
    monkeypatch.chdir(repository)
    with opened(("HEAD", ".")) as checkouts:
        error = imported(checkouts[0], repository, [ROOT, repository / "src"])
    assert "No module named 'user_code'" in error


def test_a_package_that_lies_in_no_checkout_stays_imported(tmp_path, code_of_one):
    """Libraries in a folder of `pip install --target`: two copies of one would not recognise each other's types."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "library.py").write_text("class Kind: pass\n")
    then = "import library\nkind = library.Kind\ncheckout.enter()\nimport library\nassert library.Kind is kind"
    with opened(("HEAD", ".")) as checkouts:
        found = [imported(each, code_of_one, [ROOT, code_of_one, libraries], then)[:2] for each in checkouts]
    assert found == [["one", "one"]] * 2


_FINDER = """
import importlib.util
class Finder:  # as an installed package has it that was installed to be edited
    def find_spec(name, path, target=None):
        return importlib.util.spec_from_file_location(name, {file!r}) if name == "found" else None
sys.meta_path.append(Finder)
import found
checkout.check_imports()
"""


def test_a_module_that_a_finder_takes_from_the_working_tree_is_an_error(code_of_one):
    file = code_of_one / "elsewhere" / "found.py"
    with opened(("HEAD", ".")) as checkouts:
        errors = [imported(each, code_of_one, [ROOT], _FINDER.format(file=str(file))) for each in checkouts]
    assert f"InputError: found is imported from {file}, which is not in this checkout." in errors[0]
    assert errors[1][:2] == ["one", "one"]


def test_libraries_in_the_repository_are_those_of_the_working_tree(code_of_one):
    """A virtual environment usually lies in the checkout, and is the same for both."""
    commit(code_of_one, {"shared.py": None})
    installed = code_of_one / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "shared.py").write_text("PLACE = 'installed'\n")
    with opened(("HEAD", ".")) as checkouts:
        assert imported(checkouts[0], code_of_one, [ROOT, installed])[:2] == ["installed", "one"]
