"""The command line, in processes of its own: exit codes, one-line errors, limits, kills and rivals."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoint_repository import digest, some_bytes

REPOSITORY = Path(__file__).resolve().parents[3]
SIZE = 2_000_000
BODY = some_bytes(SIZE)


def command(published, *names) -> list[str]:
    return [sys.executable, "-m", "profiling.checkpoints", "--manifest", str(published.manifest), *names]


def run(published, *names, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(published, *names), cwd=REPOSITORY, capture_output=True, text=True, timeout=60, **options
    )


def start(published, *names) -> subprocess.Popen:
    return subprocess.Popen(
        command(published, *names), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_all_files_or_the_named_ones(published):
    published.publish("image", BODY)
    published.publish("audio", BODY[:1000])
    done = run(published, "audio_decoder")
    assert done.returncode == 0, done.stderr
    assert [served.path for served in published.server.log] == ["/audio.pt"]
    done = run(published)
    assert done.returncode == 0, done.stderr
    assert published.file("image").read_bytes() == BODY
    assert "audio: checkpoints/vaes/audio.pt: ok, not downloaded" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_wrong_name_downloads_nothing(published):
    published.publish("image", BODY)
    done = run(published, "image", "imgae")
    assert done.returncode == 2
    assert done.stderr == "error: no checkpoint 'imgae'. Did you mean 'image'? There are: image\n"
    assert published.server.log == []


def test_one_failure_does_not_stop_the_others(published):
    published.publish("gone", BODY)
    published.publish("image", BODY)
    del published.server.files["/gone.pt"]
    done = run(published)
    assert done.returncode == 1
    assert done.stderr.startswith("error: gone: http://127.0.0.1")
    assert done.stderr.count("\n") == 1
    assert published.file("image").read_bytes() == BODY


def test_a_file_size_limit_keeps_the_part_and_says_what_was_needed(published):
    published.publish("image", BODY)
    limit = 1_000_000
    done = run(published, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert done.returncode == 1
    assert done.stderr == (
        "error: image: cannot write 'checkpoints/vaes/image.pt.part': File too large; the file needs 1.9 MiB, "
        "1.0 MiB of it are here and kept; make room or give the permission, "
        "then type python -m profiling.checkpoints image\n"
    )
    assert not published.file("image").exists()
    assert run(published).returncode == 0
    assert published.file("image").read_bytes() == BODY
    assert published.server.log[1].sent == SIZE - limit


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_download_is_gone_on_with(published, how):
    remote = published.publish("image", BODY)
    remote.seconds_per_chunk = 0.05
    part = published.file("image").with_name("image.pt.part")
    process = start(published)
    until(lambda: part.exists() and part.stat().st_size > 500_000)
    process.send_signal(how)
    output, _ = process.communicate(timeout=20)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "error: interrupted; what has arrived is kept" in output
    assert not published.file("image").exists()
    remote.seconds_per_chunk = 0.0
    assert run(published).returncode == 0
    assert published.file("image").read_bytes() == BODY
    assert published.server.log[-1].sent < SIZE - 400_000


def test_two_processes_make_one_download(published):
    published.publish("image", BODY).seconds_per_chunk = 0.04
    first = start(published)
    part = published.file("image").with_name("image.pt.part")
    until(lambda: part.exists() and part.stat().st_size > 0)
    second = start(published)
    outputs = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert "image: another process is downloading it, waiting" in outputs[1]
    assert published.file("image").read_bytes() == BODY
    assert len(published.server.log) == 1
    assert published.leftovers() == []
    assert digest(BODY) in published.lock.read_text()


def test_two_processes_recording_different_files_lose_neither(published):
    for name in ("image", "audio"):
        published.publish(name, BODY)
    processes = [start(published, name) for name in ("image", "audio")]
    assert [process.wait(timeout=30) for process in processes] == [0, 0]
    assert {published.entry(name).sha256 for name in ("image", "audio")} == {digest(BODY)}
    for process in processes:
        process.communicate()


def test_the_command_needs_no_torch(published):
    code = "import sys, profiling.checkpoints; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


def until(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
