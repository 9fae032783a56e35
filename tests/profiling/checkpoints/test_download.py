"""Downloads from a local server: its log shows what was requested, the disk what arrived.

tests/faults/test_downloads.py plants the faults of servers, disks and files.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import yaml
from published import checkpoint

from profiling.checkpoints.download import Retries, download
from profiling.components.manifest import verify

REPOSITORY = Path(__file__).resolve().parents[3]
SIZE = 2_000_000
BODY, OTHER_BODY = checkpoint(SIZE, 0), checkpoint(SIZE, 1)
SHA256 = hashlib.sha256(BODY).hexdigest()
THREE_TRIES = Retries(attempts=3, backoff_s=0.0, timeout_s=5.0)


def get(published, name="vae", retries=THREE_TRIES) -> str:
    return download(published.entry(name), retries=retries)


def test_a_download_is_whole_and_its_digest_is_recorded(published):
    published.publish("vae", BODY)
    seen = []
    done = download(published.entry("vae"), progress=lambda done, total: seen.append((done, total)))
    assert published.file("vae").read_bytes() == BODY
    assert yaml.safe_load(published.lock.read_text()) == {"files": {"vae": {"sha256": SHA256, "size": SIZE}}}
    assert published.partial_files() == []
    assert seen[0] == (0, SIZE)
    assert seen[-1] == (SIZE, SIZE)
    assert "downloaded" in done
    assert verify(published.entry("vae")) == SHA256


def test_a_second_run_does_nothing(published):
    published.publish("vae", BODY)
    get(published)
    before = published.file("vae").stat().st_mtime_ns
    assert get(published) == "already downloaded, sha256 verified"
    assert len(published.server.log) == 1
    assert published.file("vae").stat().st_mtime_ns == before


def test_a_cut_body_is_resumed_in_the_same_run(published):
    published.publish("vae", BODY).cuts = [1_500_000]
    get(published)
    first, second = published.server.log
    assert published.file("vae").read_bytes() == BODY
    assert first.range is None
    assert second.range is not None
    assert second.status == 206
    assert second.sent < SIZE - 1_000_000
    assert published.partial_files() == []


def test_last_modified_replaces_a_weak_etag(published):
    remote = published.publish("vae", BODY)
    remote.etag, remote.modified, remote.cuts = 'W/"v1"', "Fri, 21 Nov 2025 08:00:00 GMT", [1_500_000]
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert published.server.log[1].status == 206


def test_a_part_that_is_already_whole_is_not_fetched_again(published):
    published.publish("vae", BODY)
    published.file("vae").parent.mkdir()
    published.part("vae").write_bytes(BODY)
    published.file("vae").with_name("vae.pt.part.etag").write_text('"v1"')
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert [served.status for served in published.server.log] == [416]
    assert published.partial_files() == []


def test_an_attempt_that_receives_bytes_restarts_the_count_of_attempts(published):
    remote = published.publish("vae", BODY)
    remote.cuts = [600_000, 600_000, 600_000, None]
    get(published, retries=Retries(attempts=2, backoff_s=0.0))
    assert published.file("vae").read_bytes() == BODY


def test_the_digest_of_a_file_copied_there_is_recorded_then_enforced(published):
    published.publish("vae", BODY)
    published.file("vae").parent.mkdir()
    published.file("vae").write_bytes(BODY)
    assert verify(published.entry("vae")) == SHA256
    assert "recorded" in get(published)
    assert published.entry("vae").sha256 == SHA256
    assert published.server.log == []


def command(published, *names) -> list[str]:
    return [sys.executable, "-m", "profiling.checkpoints", "--manifest", str(published.manifest), *names]


def run_command(published, *names, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(published, *names), cwd=REPOSITORY, capture_output=True, text=True, timeout=60, **options
    )


def test_all_files_or_the_named_ones(published):
    published.publish("image", BODY)
    published.publish("audio", BODY[:1000])
    done = run_command(published, "audio_decoder")
    assert done.returncode == 0, done.stderr
    assert [served.path for served in published.server.log] == ["/audio.pt"]
    done = run_command(published)
    assert done.returncode == 0, done.stderr
    assert published.file("image").read_bytes() == BODY
    assert "audio: checkpoints/vaes/audio.pt: already downloaded, sha256 verified" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_wrong_name_downloads_nothing(published):
    published.publish("image", BODY)
    done = run_command(published, "image", "imgae")
    assert done.returncode == 2
    assert done.stderr == "error: no checkpoint 'imgae'. Did you mean 'image'? There are: image\n"
    assert published.server.log == []
