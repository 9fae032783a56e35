"""Whose code a run measured: revisions of the user's checkouts, apart from the one of this tool."""

import os

import pytest
from as_user import OUTSIDE, ROOT, command, finished
from planted_repository import commit

from profiling.results.environment import Environment, read_environment
from profiling.run.revisions import code_changes, git_state, module_states


@pytest.mark.parametrize("in_repository", [True, False])
def test_the_users_revisions_are_recorded_apart_from_the_tools(tmp_path, in_repository):
    networks = commit(tmp_path / "networks", {"other_net.py": (OUTSIDE / "outside_net.py").read_text()})
    folder, user = tmp_path / "work", None
    if in_repository:
        user = commit(folder, {"notes.txt": "one"})
        (folder / "notes.txt").write_text("two")
    else:
        folder.mkdir()
    overrides = ("component=[net]", "component.net.module._target_=other_net.Net", "variant=[baseline]")
    path = f"{ROOT}:{OUTSIDE}:{tmp_path / 'networks'}"
    done = finished(command(folder / "run", *overrides, "isolation=none"), folder, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    recorded = read_environment(folder / "run")
    assert (recorded.user_git and (recorded.user_git.revision, recorded.user_git.dirty)) == (user and (user, True))
    assert {target: state.revision for target, state in recorded.module_git.items()} == {"other_net.Net": networks}
    assert recorded.module_git["other_net.Net"].dirty is False
    assert getattr(recorded.tool_git, "revision", None) == getattr(git_state(ROOT), "revision", None)


@pytest.mark.parametrize("name", ["new_net.py", "kernel.cu"])
def test_code_that_git_does_not_know_yet_belongs_to_the_state(tmp_path, name):
    folder = tmp_path / "work"
    commit(folder, {"net.py": "one"})
    assert not git_state(folder).dirty
    (folder / "package").mkdir()
    (folder / "package" / name).write_text("a = 1")
    (folder / "notes.txt").write_text("no code")
    first = git_state(folder / "package")
    (folder / "package" / name).write_text("a = 2")
    second = git_state(folder)
    assert (first.dirty, second.dirty, first.diff == second.diff) == (True, True, False)
    (folder / "outputs" / "kernels").mkdir(parents=True)
    (folder / "outputs" / "results.jsonl").touch()
    (folder / "outputs" / "kernels" / "generated.py").write_text("of a run")
    assert git_state(folder) == second, "what runs write is no code of the user"


def test_installed_and_unknown_modules_have_no_revision():
    assert module_states(["torch.nn.Linear", "no_such_package.Net", "Net"]) == {}


def test_code_outside_git_counts_by_the_files_of_its_package_or_beside_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "outside_git"
    (package / "parts").mkdir(parents=True)
    for file in (package / "__init__.py", package / "parts" / "__init__.py", package / "parts" / "net.py"):
        file.write_text("")
    (tmp_path / "alone_outside_git.py").write_text("")
    targets = ["outside_git.parts.net.Net", "alone_outside_git.Net"]
    before = Environment(module_git=module_states(targets))
    for file in (package / "ops.py", tmp_path / "ops.py", package / "parts" / "net.py"):
        file.write_text("a = 1")
        now = Environment(module_git=module_states(targets))
        said = code_changes(before, now)
        assert said.startswith(f"{targets[0]} outside git (")
        assert said.count(") → outside git (") == 1, "the module beside it has the same code"
        before = now
    (tmp_path / "data.bin").write_text("no code")
    os.mkfifo(tmp_path / "pipe.c")
    (tmp_path / "zeros.py").symlink_to("/dev/zero")
    assert module_states(targets) == before.module_git


def test_each_of_many_files_outside_git_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "many_outside_git"
    package.mkdir()
    files = [package / f"{name}.py" for name in ("__init__", *(f"m{number}" for number in range(1200)))]
    for file in files:
        file.write_text("")
    (tmp_path / "beside_outside_git.py").write_text("from many_outside_git import m7")
    targets = ["many_outside_git.m7.Net", "beside_outside_git.Net"]
    before = module_states(targets)
    for file in files[::300]:
        file.write_text("a = 1")
        now = module_states(targets)
        assert before.keys() == now.keys() == {*targets}
        assert not {*before.values()} & {*now.values()}
        before = now


def test_parts_of_variants_and_metrics_count_as_code(profile):
    own_metric = ("+metric.mine._target_=cell_faults.Returns", "+metric.mine.what=phase")
    done = profile("component=[net]", "variant=[own_unchanged]", *own_metric, "isolation=none")
    environment = read_environment(done.folder)
    assert {"outside_net.Net", "own_transforms.unchanged", "cell_faults.Returns"} <= set(environment.module_git)
    assert not any(target.startswith("profiling.") for target in environment.module_git)
