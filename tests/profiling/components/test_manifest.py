from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from profiling.components import weights
from profiling.components.manifest import MANIFEST, Locked, load_manifest, read_lock, record, select, verify
from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError

GOOD = {
    "name": "vae",
    "components": ["decoder"],
    "size_class": "1M",
    "path": "checkpoints/vae.pt",
    "url": "https://host/vae.pt",
}


def write(root: Path, content: object) -> Path:
    manifest = root / "checkpoints" / "manifest.yaml"
    manifest.parent.mkdir(exist_ok=True)
    manifest.write_text(content if isinstance(content, str) else json.dumps(content))  # YAML too, without aliases
    return manifest


def lacking(key: str) -> dict:
    return {k: v for k, v in GOOD.items() if k != key}


def test_the_repositorys_manifest_names_the_published_files():
    entries = {entry.name: entry for entry in load_manifest()}
    assert {name: Path(entry.path).name for name, entry in entries.items()} == {
        "audio_vae": "cod_audio_20k_ema.pt",
        "image_vae": "cod_128x_30k_ema.pt",
        "world_model_200m": "av_dfot_85k_ema_200m.pt",
    }
    for entry in entries.values():
        assert entry.file == MANIFEST.parents[1] / entry.path
        assert entry.url.rpartition("/")[2] == Path(entry.path).name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("files: [", "line 1"),
        ("", "Expected `object`"),
        ({"files": {}}, "`$.files`"),
        ({"files": []}, "`$.files`"),
        ("just text", "Expected `object`"),
        ({"files": ["text"]}, "`$.files[0]`"),
        *(({"files": [lacking(key)]}, f"missing required field `{key}`") for key in GOOD),
        ({"files": [GOOD | {"sha265": "0"}]}, "unknown field `sha265`"),
        ({"files": [GOOD, GOOD]}, "two entries have the name 'vae'"),
        ({"files": [GOOD, GOOD | {"name": "b"}]}, "two entries have the path 'checkpoints/vae.pt'"),
        ({"files": [GOOD | {"components": "decoder"}]}, "`$.files[0].components`"),
        ({"files": [GOOD | {"components": []}]}, "`$.files[0].components`"),
        ({"files": [GOOD | {"name": "a/b"}]}, "`$.files[0].name`"),
        ({"files": [GOOD | {"size_class": 200}]}, "`$.files[0].size_class`"),
        ({"files": [GOOD | {"sha256": "abc"}]}, "`$.files[0].sha256`"),
        *(
            ({"files": [GOOD | {"path": path}]}, "path")
            for path in ("/etc/x", "../x", "checkpoints/../x", "x.pt", "checkpoints", ".", "", None)
        ),
        *(
            ({"files": [GOOD | {"url": url}]}, "`$.files[0].url`")
            for url in ("file:///etc/passwd", "ftp://host/x", "host/x", "https://", "")
        ),
    ],
)
def test_a_broken_manifest_is_one_line(tmp_path, content, message):
    manifest = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        load_manifest(manifest)
    assert message in str(caught.value)
    assert str(manifest) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_manifest_says_how_to_name_one(tmp_path):
    with pytest.raises(InputError, match="does not exist: name one with --manifest PATH"):
        load_manifest(tmp_path / "none.yaml")


def test_entries_are_picked_by_name_or_component(tmp_path):
    other = GOOD | {"name": "world", "components": ["small", "large"], "path": "checkpoints/w.pt"}
    entries = load_manifest(write(tmp_path, {"files": [GOOD, other]}))
    assert [entry.name for entry in select(entries, [])] == ["vae", "world"]
    assert [entry.name for entry in select(entries, ["world", "large"])] == ["world"]
    assert [entry.name for entry in select(entries, ["decoder"])] == ["vae"]


def test_a_missing_file_is_reported_with_the_command_that_downloads_it(tmp_path):
    (entry,) = load_manifest(write(tmp_path, {"files": [GOOD]}))
    with pytest.raises(InputError, match=r"is missing\. To download it: .* -m profiling\.checkpoints vae"):
        verify(entry)


@pytest.mark.parametrize(
    "text", ["files: [", "- a", "files: {vae: 3}", "files: {vae: {sha256: x, size: 1}}", "files: {vae: {size: 1}}"]
)
def test_a_broken_lock_file_is_one_line(tmp_path, text):
    manifest = write(tmp_path, {"files": [GOOD]})
    manifest.with_name("lock.yaml").write_text(text)
    with pytest.raises(InputError, match=r"lock file .* is invalid .*git checkout") as caught:
        load_manifest(manifest)
    assert "\n" not in str(caught.value)


def test_manifest_and_lock_file_must_agree(tmp_path):
    manifest = write(tmp_path, {"files": [GOOD | {"sha256": "A" * 64}]})
    record(manifest.with_name("lock.yaml"), "vae", Locked("a" * 64, 10))
    assert load_manifest(manifest)[0].sha256 == "a" * 64
    write(tmp_path, {"files": [GOOD | {"sha256": "b" * 64}]})
    with pytest.raises(InputError, match=r"disagrees with a{64}"):
        load_manifest(manifest)


def test_a_record_is_added_once_and_never_changed(tmp_path):
    lock = tmp_path / "lock.yaml"
    assert record(lock, "b", Locked("b" * 64, 2))
    assert record(lock, "a", Locked("a" * 64, 1))
    text = lock.read_text()
    assert not record(lock, "a", Locked("a" * 64, 1))
    with pytest.raises(InputError, match=r"b{64}"):
        record(lock, "a", Locked("b" * 64, 1))
    assert lock.read_text() == text
    assert list(read_lock(lock)) == ["a", "b"]
    assert text.startswith("# sha256")
    assert [path.name for path in tmp_path.iterdir()] == ["lock.yaml"]


@pytest.fixture
def hashed(monkeypatch) -> list[str]:
    """Return the names of the files that are hashed from now on."""
    names, file_digest = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, name: names.append(file.name) or file_digest(file, name))
    return names


def test_a_file_is_hashed_once_a_process_until_it_changes(tmp_path, hashed):
    (entry,) = load_manifest(write(tmp_path, {"files": [GOOD]}))
    entry.file.write_bytes(b"one")
    assert verify(entry) == verify(entry) == hashlib.sha256(b"one").hexdigest()
    assert len(hashed) == 1
    entry.file.write_bytes(b"other")
    assert verify(entry) == hashlib.sha256(b"other").hexdigest()
    assert len(hashed) == 2


def test_a_component_that_is_built_twice_hashes_its_checkpoint_once(tmp_path, hashed, monkeypatch):
    manifest = write(tmp_path, {"files": [GOOD]})
    monkeypatch.setattr(weights, "load_manifest", lambda: load_manifest(manifest))
    torch.save({"weight": torch.ones(2, 2)}, tmp_path / GOOD["path"])
    spec = ComponentSpec("decoder@batch=4", {"_target_": "torch.nn.Linear"}, {"input": {"shape": [2]}})
    for _ in range(2):
        module = torch.nn.Linear(2, 2, bias=False)
        assert weights.give_weights(module, spec, Settings(scale="full")) == (str(tmp_path / GOOD["path"]), None)
        assert torch.equal(module.weight, torch.ones(2, 2))
    assert len(hashed) == 1


def test_a_file_of_the_manifest_that_the_user_names_is_verified(tmp_path, monkeypatch):
    manifest = write(tmp_path, {"files": [GOOD | {"sha256": "0" * 64}]})
    monkeypatch.setattr(weights, "load_manifest", lambda: load_manifest(manifest))
    named = manifest.parent / ".." / GOOD["path"]
    torch.save({"weight": torch.ones(2, 2)}, named)
    spec = ComponentSpec("mine", {"_target_": "torch.nn.Linear"}, {"input": {"shape": [2]}}, checkpoint=str(named))
    with pytest.raises(InputError, match="is not the published file"):
        weights.give_weights(torch.nn.Linear(2, 2, bias=False), spec, Settings())
