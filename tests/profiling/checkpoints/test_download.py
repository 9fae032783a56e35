"""Downloads from a local server with planted faults: its log shows what was requested, the disk what arrived.

The second half runs the command in processes of its own: exit codes, one-line errors, limits, signals, concurrency.
"""

from __future__ import annotations

import hashlib
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from published import Published
from unprivileged import as_nobody, reachable_folder

from profiling.checkpoints.download import DownloadError, Retries, download
from profiling.components.manifest import verify
from profiling.errors import InputError, python_command

REPOSITORY = Path(__file__).resolve().parents[3]
SIZE = 2_000_000
BODY, OTHER_BODY = (random.Random(seed).randbytes(SIZE) for seed in (0, 1))
SHA256 = hashlib.sha256(BODY).hexdigest()
THREE_TRIES = Retries(attempts=3, backoff_s=0.0, timeout_s=5.0)
ONE_TRY = Retries(attempts=1, backoff_s=0.0, timeout_s=5.0)


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


def test_a_cut_body_is_resumed_by_the_next_run(published):
    published.publish("vae", BODY).cuts = [1_500_000]
    with pytest.raises(DownloadError, match=r"the connection closed after \d+ of 2000000 bytes"):
        get(published, retries=ONE_TRY)
    assert not published.file("vae").exists()
    assert published.partial_files() == ["vae.pt.part", "vae.pt.part.etag"]
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert published.server.log[1].sent < SIZE - 1_000_000


@pytest.mark.parametrize("checks_if_range", [True, False])
def test_a_remote_file_that_changed_is_fetched_anew_and_not_spliced(published, checks_if_range):
    remote = published.publish("vae", BODY)
    remote.cuts, remote.checks_if_range = [1_500_000], checks_if_range
    with pytest.raises(DownloadError):
        get(published, retries=ONE_TRY)
    remote.body, remote.etag = OTHER_BODY, '"v2"'
    get(published)
    assert published.file("vae").read_bytes() == remote.body
    # A server that checks If-Range answers with the whole new file at once.
    assert [served.status for served in published.server.log] == ([200, 200] if checks_if_range else [200, 206, 200])


def test_last_modified_replaces_a_weak_etag(published):
    remote = published.publish("vae", BODY)
    remote.etag, remote.modified, remote.cuts = 'W/"v1"', "Fri, 21 Nov 2025 08:00:00 GMT", [1_500_000]
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert published.server.log[1].status == 206


@pytest.mark.parametrize("fault", [{"ranges": False}, {"etag": None}])
def test_a_server_that_cannot_resume_makes_the_download_start_again(published, fault):
    remote = published.publish("vae", BODY)
    remote.cuts = [1_500_000]
    vars(remote).update(fault)
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert [served.sent for served in published.server.log] == [1_500_000, SIZE]


def test_a_part_that_is_already_whole_is_not_fetched_again(published):
    published.publish("vae", BODY)
    published.file("vae").parent.mkdir()
    published.part("vae").write_bytes(BODY)
    published.file("vae").with_name("vae.pt.part.etag").write_text('"v1"')
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert [served.status for served in published.server.log] == [416]
    assert published.partial_files() == []


def test_a_part_longer_than_the_file_is_deleted(published):
    published.publish("vae", BODY)
    published.file("vae").parent.mkdir()
    published.part("vae").write_bytes(BODY + b"more")
    published.file("vae").with_name("vae.pt.part.etag").write_text('"v1"')
    get(published)
    assert published.file("vae").read_bytes() == BODY


@pytest.mark.parametrize("statuses", [[500], [503, 429]])
def test_a_transient_status_is_retried(published, statuses):
    published.publish("vae", BODY).statuses = list(statuses)
    done = []
    download(published.entry("vae"), notice=done.append, retries=THREE_TRIES)
    assert [line.partition(";")[2] for line in done] == [" retrying in 0 s"] * len(statuses)
    assert published.file("vae").read_bytes() == BODY
    assert [served.status for served in published.server.log] == [*statuses, 200]


def test_attempts_without_a_new_byte_are_limited(published):
    published.publish("vae", BODY).statuses = [503] * 10
    with pytest.raises(DownloadError, match="HTTP 503 Service Unavailable; gave up after 3 attempts"):
        get(published)
    assert len(published.server.log) == 3
    assert published.partial_files() == []


def test_an_attempt_that_receives_bytes_restarts_the_count_of_attempts(published):
    remote = published.publish("vae", BODY)
    remote.cuts = [600_000, 600_000, 600_000, None]
    get(published, retries=Retries(attempts=2, backoff_s=0.0))
    assert published.file("vae").read_bytes() == BODY


def test_a_missing_remote_file_is_one_line(published):
    published.publish("vae", BODY)
    published.server.files.clear()
    with pytest.raises(DownloadError, match="HTTP 404 Not Found") as caught:
        get(published)
    assert "\n" not in str(caught.value)
    assert len(published.server.log) == 1
    assert not published.file("vae").exists()
    assert published.partial_files() == []


def test_a_refused_connection_is_one_short_line(published):
    published.publish("vae", BODY, url="http://127.0.0.1:9/vae.pt")
    with pytest.raises(DownloadError, match="Connection refused; gave up after 3 attempts") as caught:
        get(published)
    assert "0x" not in str(caught.value)


def test_a_body_without_a_length_is_refused_since_a_cut_could_not_be_seen(published):
    published.publish("vae", BODY).no_length = True
    with pytest.raises(DownloadError, match="does not send the file's size"):
        get(published)
    assert not published.file("vae").exists()


def test_the_recorded_digest_is_enforced_on_the_next_download(published):
    remote = published.publish("vae", BODY)
    get(published)
    published.file("vae").unlink()
    remote.body, remote.etag = OTHER_BODY, '"v2"'
    with pytest.raises(InputError, match=r"'lock\.yaml' requires " + SHA256):
        get(published)
    assert not published.file("vae").exists()
    remote.body, remote.etag = BODY, '"v1"'
    get(published)
    assert published.file("vae").read_bytes() == BODY


def test_the_manifests_digest_is_enforced_on_the_first_download(published):
    published.publish("vae", BODY, sha256="0" * 64)
    with pytest.raises(InputError, match="the manifest requires 0000"):
        get(published)
    assert not published.file("vae").exists()
    assert not published.lock.exists()


def test_a_wrong_file_that_is_there_is_kept_and_reported(published):
    published.publish("vae", BODY)
    get(published)
    published.file("vae").write_bytes(b"mine")
    for act in (get, lambda published: verify(published.entry("vae"))):
        with pytest.raises(InputError, match=r"is not the published file.*Move it away"):
            act(published)
    assert published.file("vae").read_bytes() == b"mine"
    assert len(published.server.log) == 1


def test_the_digest_of_a_file_copied_there_is_recorded_then_enforced(published):
    published.publish("vae", BODY)
    published.file("vae").parent.mkdir()
    published.file("vae").write_bytes(BODY)
    assert verify(published.entry("vae")) == SHA256
    assert "recorded" in get(published)
    assert published.entry("vae").sha256 == SHA256
    assert published.server.log == []


def test_a_full_disk_is_reported_before_it_is_filled(published):
    published.publish("vae", BODY).announced = 10**18
    with pytest.raises(DownloadError, match=r"MiB are free on the disk; the file has 953674316406\.2 MiB"):
        get(published)
    assert not published.file("vae").exists()


def test_a_folder_that_cannot_be_written_is_one_line(server):
    with reachable_folder() as folder:
        published = Published(folder, server)
        published.publish("vae", BODY)
        with as_nobody(), pytest.raises(DownloadError, match=r"cannot write 'checkpoints/vaes': Permission denied"):
            get(published)


def test_a_folder_under_the_final_name_is_refused(published):
    published.publish("vae", BODY)
    published.file("vae").mkdir(parents=True)
    with pytest.raises(InputError, match="is not a file"):
        get(published)


def command(published, *names) -> list[str]:
    return [sys.executable, "-m", "profiling.checkpoints", "--manifest", str(published.manifest), *names]


def run_command(published, *names, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(published, *names), cwd=REPOSITORY, capture_output=True, text=True, timeout=60, **options
    )


def start_command(published, *names) -> subprocess.Popen:
    return subprocess.Popen(
        command(published, *names), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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


def test_one_failure_does_not_stop_the_others(published):
    published.publish("gone", BODY)
    published.publish("image", BODY)
    del published.server.files["/gone.pt"]
    done = run_command(published)
    assert done.returncode == 1
    assert done.stderr.startswith("error: gone: http://127.0.0.1")
    assert done.stderr.count("\n") == 1
    assert published.file("image").read_bytes() == BODY


def test_a_file_size_limit_keeps_the_part_and_reports_the_size(published):
    published.publish("image", BODY)
    limit = 1_000_000
    done = run_command(published, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert done.returncode == 1
    assert done.stderr == (
        "error: image: cannot write 'checkpoints/vaes/image.pt.part': File too large; the file has 1.9 MiB, of which "
        f"1.0 MiB have arrived and are kept. To try again: {python_command()} -m profiling.checkpoints image\n"
    )
    assert not published.file("image").exists()
    assert run_command(published).returncode == 0
    assert published.file("image").read_bytes() == BODY
    assert published.server.log[1].sent == SIZE - limit


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_download_is_resumed(published, how):
    remote = published.publish("image", BODY)
    remote.seconds_per_chunk = 0.05
    part = published.part("image")
    process = start_command(published)
    until(lambda: part.exists() and part.stat().st_size > 500_000)
    process.send_signal(how)
    output, _ = process.communicate(timeout=20)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "error: interrupted. What has arrived is kept" in output
    assert not published.file("image").exists()
    remote.seconds_per_chunk = 0.0
    assert run_command(published).returncode == 0
    assert published.file("image").read_bytes() == BODY
    assert published.server.log[-1].sent < SIZE - 400_000


def test_two_processes_make_one_download(published):
    published.publish("image", BODY).seconds_per_chunk = 0.04
    first = start_command(published)
    part = published.part("image")
    until(lambda: part.exists() and part.stat().st_size > 0)
    second = start_command(published)
    outputs = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert "image: another process is downloading it, waiting" in outputs[1]
    assert published.file("image").read_bytes() == BODY
    assert len(published.server.log) == 1
    assert published.partial_files() == []
    assert SHA256 in published.lock.read_text()


def test_two_processes_recording_different_files_lose_neither(published):
    for name in ("image", "audio"):
        published.publish(name, BODY)
    processes = [start_command(published, name) for name in ("image", "audio")]
    assert [process.wait(timeout=30) for process in processes] == [0, 0]
    assert {published.entry(name).sha256 for name in ("image", "audio")} == {SHA256}
    for process in processes:
        process.communicate()


def until(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
