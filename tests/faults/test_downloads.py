"""Checkpoints and downloads."""

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import pickle
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict, namedtuple
from io import BytesIO
from pathlib import Path

import pytest
import torch
from published import Published, checkpoint
from safetensors.torch import save_file
from unprivileged import as_nobody, reachable_folder

from profiling.checkpoints import download as downloading
from profiling.checkpoints.download import DownloadError, Retries, download
from profiling.components import checkpoint_format
from profiling.components.checkpoint_file import load_into, read
from profiling.components.manifest import load_manifest, verify
from profiling.components.spec import ComponentSpec, Settings
from profiling.components.weights import give_weights
from profiling.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[2]
SIZE = 2_000_000
BODY, OTHER_BODY = checkpoint(SIZE, 0), checkpoint(SIZE, 1)
SHA256 = hashlib.sha256(BODY).hexdigest()
PASSWORD, TOKEN = "s3cret", "t0ken"


def fault(planted, happens, kept=""):
    return pytest.mark.fault(planted, happens=happens, kept=kept)


def row(planted, *values, happens, kept=""):
    return pytest.param(*values, marks=fault(planted, happens, kept), id=planted)


def get(published, name="vae", attempts=3, **retries) -> str:
    retries = {"backoff_s": 0.0, "timeout_s": 5.0, "least_rate": 1.0} | retries
    return download(published.entry(name), retries=Retries(attempts=attempts, **retries))


def refused(published, error=DownloadError, **retries) -> str:
    """Return the one line of a download that fails, after checking that nothing unverified has a name or a record."""
    with pytest.raises(error) as caught:
        get(published, **retries)
    assert not published.file("vae").exists()
    assert not published.lock.exists()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 2000
    return str(caught.value)


def head(status="200 OK", **headers: object) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


# Sizes that are false


@fault("a chunked body longer than its Content-Length", "refused before a byte of it is written")
def test_chunked_body(published):
    endless = itertools.chain([head(Content_Length=2000, Transfer_Encoding="chunked")], itertools.repeat(chunked(BODY)))
    published.publish("vae", BODY).raw = endless
    assert "does not send the file's size" in refused(published)
    assert published.partial_files() == []
    assert published.server.log[0].sent < 20 * SIZE


@fault("a body longer than its Content-Length", "read up to the announced size, then verified", "the file")
def test_body_longer_than_announced(published):
    published.publish("vae", BODY).raw = [head(Content_Length=SIZE), BODY, b"more" * 1000]
    get(published)
    assert published.file("vae").read_bytes() == BODY


@pytest.mark.parametrize("resumed", [False, True], ids=["whole", "resumed"])
@fault("a gzip body that expands", "refused: never decompressed", "what had arrived before, if its version is known")
def test_gzip_body(published, resumed):
    remote = published.publish("vae", BODY)
    if resumed:
        remote.cuts = [1_000_000]
        refused(published, attempts=1)
    bomb = gzip.compress(bytes(10_000_000))
    more = {"Content_Range": f"bytes 1000000-{SIZE - 1}/{SIZE}", "ETag": '"v1"'} if resumed else {}
    status = "206 Partial Content" if resumed else "200 OK"
    remote.raw = [head(status, Content_Length=len(bomb), Content_Encoding="gzip", **more), bomb]
    assert "does not send the file's size" in refused(published)
    assert published.partial_files() == (["vae.pt.part", "vae.pt.part.etag"] if resumed else [])


@pytest.mark.parametrize(
    "length",
    [
        row("a Content-Length of 5000 digits", "9" * 5000, happens="one line"),
        row("a negative Content-Length", "-5", happens="one line"),
        row("two Content-Lengths that differ", "2000000, 3000000", happens="one line"),
        row("a Content-Length in other digits", "²", happens="one line"),
        row("no Content-Length", None, happens="refused, because a cut could not be seen"),
        row("a Content-Length larger than the disk", "9" * 19, happens="refused before a byte of it is written"),
        row("an empty file", "0", happens="refused, not recorded"),
    ],
)
def test_content_length(published, length):
    published.publish("vae", BODY).raw = [head(**({} if length is None else {"Content_Length": length})), BODY]
    message = refused(published, attempts=1)
    assert any(words in message for words in ("file's size", "Content-Length", "are free on the disk", "is empty"))
    assert published.partial_files() == []


@pytest.mark.parametrize(
    "span",
    [
        row("a Content-Range that begins elsewhere", "bytes 5-1999999/2000000", happens="the download starts again"),
        row("a Content-Range beyond its size", "bytes 1000000-3000000/2000000", happens="the download starts again"),
        row(
            "a Content-Range of 5000 digits", f"bytes 1000000-1999999/{'9' * 5000}", happens="the download starts again"
        ),
        row("a Content-Range that is garbage", "\x1b[31mbytes", happens="the download starts again"),
        row("a 206 answer without Content-Range", None, happens="the download starts again"),
    ],
)
def test_content_range(published, span):
    remote = published.publish("vae", BODY)
    remote.cuts = [1_000_000]
    refused(published, attempts=1)
    more = {} if span is None else {"Content_Range": span}
    remote.raw = [head("206 Partial Content", Content_Length=SIZE // 2, ETag='"v1"', **more), BODY]
    assert "does not match the requested range" in refused(published, attempts=1)
    assert published.partial_files() == []
    remote.raw = None
    get(published)
    assert published.file("vae").read_bytes() == BODY


@fault("the disk is too small for the announced size", "refused before a byte of it is written")
def test_full_disk_before(published):
    published.publish("vae", BODY).announced = 10**18
    assert "MiB are free on the disk, and 953674316406.2 MiB are still to arrive" in refused(published)
    assert published.partial_files() == []


@fault("another program fills the disk meanwhile", "stops at once, in one line", "what has arrived: resumed later")
def test_disk_that_fills_up(published, monkeypatch):
    published.publish("vae", BODY)
    usage = namedtuple("usage", "free")
    sizes = itertools.chain([SIZE, SIZE], itertools.repeat(1000))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(next(sizes)))
    message = refused(published)
    assert "0.0 MiB are free on the disk" in message
    assert message.endswith("have arrived and are kept")
    kept = published.part("vae").stat().st_size
    assert 0 < kept < SIZE
    monkeypatch.undo()
    os.environ["NO_PROXY"] = "127.0.0.1"
    get(published)
    assert published.server.log[-1].sent == SIZE - kept


@fault("a write fails halfway (limit of the file size)", "one line, exit 1", "what has arrived: resumed later")
def test_write_fails(published):
    published.publish("image", BODY)
    limit = 1_000_000
    done = run_command(published, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "error: image: cannot write 'checkpoints/vaes/image.pt.part': File too large; 1.0 MiB"
    )
    assert " of 1.9 MiB have arrived and are kept. To try again: " in done.stderr
    assert run_command(published).returncode == 0
    assert published.file("image").read_bytes() == BODY
    assert published.server.log[1].sent == SIZE - limit


@fault("the folder of checkpoints cannot be written", "one line: its path and Permission denied")
def test_folder_that_cannot_be_written(server):
    with reachable_folder() as folder:
        published = Published(folder, server)
        published.publish("vae", BODY)
        with as_nobody(), pytest.raises(DownloadError, match=r"cannot write 'checkpoints/vaes': Permission denied"):
            get(published)


# What is no checkpoint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        row("an HTML page with status 200", b"<!DOCTYPE html><h1>Log in", "an HTML", happens="refused, not recorded"),
        row("an XML error with status 200", b"\xef\xbb\xbf\n<Error>", "or XML page", happens="refused, not recorded"),
        row("a JSON error with status 200", b'  {"error": 404}', "but JSON text", happens="refused, not recorded"),
        row("a text with status 200", b"version https://git-lfs", "is not a", happens="refused, not recorded"),
        row("another zip under a checkpoint's name", b"PK\x03\x04" + bytes(99), "cut", happens="refused, not recorded"),
        row(
            "a page with escape sequences", b"<\x1b]0;x\x07\x1b[2J", "an HTML", happens="refused, printed without them"
        ),
    ],
)
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_page_instead_of_checkpoint(published, content, message, suffix):
    published.publish("vae", content, path=f"checkpoints/vaes/vae.{suffix}")
    assert message in refused(published) or suffix == "safetensors"
    assert published.partial_files() == []
    assert not published.file("vae").with_suffix(f".{suffix}").exists()


@fault(
    "the file has another SHA-256 than at its first download", "refused, exit 2", "nothing; the next right one loads"
)
def test_recorded_digest(published):
    remote = published.publish("vae", BODY)
    get(published)
    published.file("vae").unlink()
    remote.body, remote.etag = OTHER_BODY, '"v2"'
    with pytest.raises(InputError, match=r"'lock\.yaml' requires " + SHA256):
        get(published)
    assert not published.file("vae").exists()
    assert published.partial_files() == []
    remote.body, remote.etag = BODY, '"v1"'
    get(published)
    assert published.file("vae").read_bytes() == BODY


@fault("the file has another SHA-256 than the manifest says", "refused, exit 2: not recorded")
def test_digest_of_the_manifest(published):
    published.publish("vae", BODY, sha256="0" * 64)
    assert "the manifest requires 0000" in refused(published, InputError)


@fault("a wrong file lies under the final name", "refused, exit 2: names what to move away", "the file")
def test_wrong_file_that_is_there(published):
    published.publish("vae", BODY)
    get(published)
    published.file("vae").write_bytes(b"mine")
    for act in (get, lambda published: verify(published.entry("vae"))):
        with pytest.raises(InputError, match=r"is not the published file.*Move it away"):
            act(published)
    assert published.file("vae").read_bytes() == b"mine"
    assert len(published.server.log) == 1


@fault("a folder lies under the final name", "refused, exit 2", "the folder")
def test_folder_under_the_final_name(published):
    published.publish("vae", BODY)
    published.file("vae").mkdir(parents=True)
    with pytest.raises(InputError, match="is not a file"):
        get(published)


# Connections that are cut or slow


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@fault("a server cuts every 100 KB", "resumed by the same command until all has arrived", "all that arrived")
def test_server_that_cuts_often(published, resets):
    remote = published.publish("vae", BODY)
    remote.cuts, remote.resets = [100_000] * 100, resets
    get(published, attempts=2, least_rate=10_000.0)
    assert published.file("vae").read_bytes() == BODY
    assert 20 <= len(published.server.log) <= 40
    assert sum(served.sent for served in published.server.log) < 2 * SIZE


@fault(
    "a connection is cut and the attempts are spent", "one line, exit 1", "what has arrived: the next run resumes it"
)
def test_cut_body_is_resumed_by_the_next_run(published):
    published.publish("vae", BODY).cuts = [1_500_000]
    message = refused(published, attempts=1)
    assert "the connection closed after 1500000 of 2000000 bytes" in message
    assert message.endswith("1.4 MiB of 1.9 MiB have arrived and are kept")
    assert published.part("vae").read_bytes() == BODY[:1_500_000]
    assert published.partial_files() == ["vae.pt.part", "vae.pt.part.etag"]
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert published.server.log[1].sent == SIZE - 1_500_000


@fault("a connection is cut and the server names no version", "says that nothing is kept", "nothing")
def test_nothing_is_said_to_be_kept_that_cannot_be_resumed(published):
    remote = published.publish("vae", BODY)
    remote.cuts, remote.etag = [1_500_000], None
    message = refused(published, attempts=1)
    assert message.endswith("had arrived and were deleted, because the server gives its file no version to resume")
    assert published.partial_files() == []


@pytest.mark.parametrize(
    "changed",
    [
        row("a server ignores the request to resume", {"ranges": False}, happens="the download starts again"),
        row("a server stops naming a version", {"etag": None}, happens="the download starts again"),
    ],
)
def test_server_that_cannot_resume(published, changed):
    remote = published.publish("vae", BODY)
    remote.cuts = [1_500_000]
    vars(remote).update(changed)
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert [served.sent for served in published.server.log] == [1_500_000, SIZE]


@pytest.mark.parametrize("checks_if_range", [True, False])
@fault("the remote file changes between two attempts", "fetched anew: two versions are never joined")
def test_remote_file_that_changed(published, checks_if_range):
    remote = published.publish("vae", BODY)
    remote.cuts, remote.checks_if_range = [1_500_000], checks_if_range
    refused(published, attempts=1)
    remote.body, remote.etag = OTHER_BODY, '"v2"'
    get(published)
    assert published.file("vae").read_bytes() == remote.body
    # A server that checks If-Range answers with the whole new file at once.
    assert [served.status for served in published.server.log] == ([200, 200] if checks_if_range else [200, 206, 200])


@pytest.mark.parametrize(
    ("part", "version"),
    [
        row("a partial file of another version", OTHER_BODY[:999], '"v0"', happens="fetched anew"),
        row("a partial file without its version", OTHER_BODY[:999], None, happens="fetched anew"),
        row("a partial file with a damaged version", OTHER_BODY[:999], '"v1"\r\nX: y\x1b', happens="fetched anew"),
        row("a partial file longer than the file", BODY + b"more", '"v1"', happens="fetched anew"),
        row("a version without a partial file", None, '"v1"', happens="fetched anew"),
    ],
)
def test_partial_file(published, part, version):
    published.publish("vae", BODY)
    published.file("vae").parent.mkdir()
    for end, content in (("", part), (".etag", version and version.encode())):
        if content is not None:
            Path(f"{published.part('vae')}{end}").write_bytes(content)
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert published.partial_files() == []


@pytest.mark.parametrize("status", ["503 Busy", "429 Too Many", "500 Error"])
@fault("a server answers 500, 503 or 429", "tried again, five times at most, with growing pauses", "what has arrived")
def test_transient_status(published, status):
    remote = published.publish("vae", BODY)
    remote.statuses = [int(status[:3])] * 2
    lines = []
    download(published.entry("vae"), notice=lines.append, retries=Retries(backoff_s=0.01))
    assert [line.partition(";")[2] for line in lines] == [" retrying in 0.01 s", " retrying in 0.02 s"]
    published.file("vae").unlink()
    published.lock.unlink()
    remote.statuses = [int(status[:3])] * 10
    assert "gave up after 5 attempts" in refused(published, attempts=5)
    assert len(published.server.log) == 3 + 5


@fault("the remote file is missing (404)", "one line, exit 1, not tried again; the other files are downloaded")
def test_missing_remote_file(published):
    published.publish("gone", BODY)
    published.publish("image", BODY)
    del published.server.files["/gone.pt"]
    done = run_command(published)
    assert done.returncode == 1
    assert done.stderr.startswith("error: gone: http://127.0.0.1")
    assert "HTTP 404 Not Found" in done.stderr
    assert done.stderr.count("\n") == 1
    assert published.file("image").read_bytes() == BODY
    assert [served.path for served in published.server.log] == ["/gone.pt", "/image.pt"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        row(
            "a refused connection", "http://127.0.0.1:9/vae.pt", "Connection refused; gave up", happens="one short line"
        ),
        row("a host that does not exist", "http://no-host.invalid/vae.pt", "gave up after 2", happens="one short line"),
    ],
)
def test_no_connection(published, url, message):
    published.publish("vae", BODY, url=url)
    line = refused(published, attempts=2)
    assert message in line
    assert "0x" not in line


def drip(published, size: int, **retries) -> tuple[str, float]:
    """Download from a server that sends the head and `size` bytes at once, then a byte each 20 ms; return (line, s)."""
    first = [head(Content_Length=SIZE, ETag='"v1"') + BODY[:size]]
    remote = published.publish("vae", BODY)
    remote.raw, remote.seconds_per_chunk = itertools.chain(first, (BODY[i : i + 1] for i in range(size, SIZE))), 0.02
    start = time.monotonic()
    return refused(published, **retries), time.monotonic() - start


@fault(
    "a server sends a byte at a time", "ended below 10 kB/s over 60 s; after five times one line", "what has arrived"
)
def test_slow_body(published):
    line, seconds = drip(published, 100_000, attempts=1, timeout_s=0.3, least_rate=1e6)
    assert "bytes arrived in 0.3 s" in line
    assert line.endswith("have arrived and are kept")
    assert seconds < 3
    kept = published.part("vae").read_bytes()
    assert len(kept) > 100_000
    assert kept == BODY[: len(kept)]


@fault("a download that would take days", "ended after 24 h in one line", "what has arrived")
def test_total_time(published):
    line, seconds = drip(published, 1000, total_s=0.3)
    assert "not finished after 0.3 s" in line
    assert line.endswith("have arrived and are kept")
    assert seconds < 3


@fault("a server sends one byte a connection", "no progress: ended after five attempts", "what has arrived")
def test_one_byte_a_connection(published):
    remote = published.publish("vae", BODY)
    remote.cuts = [1] * 1000
    assert "gave up after 3 attempts" in refused(published, backoff_s=0.01, least_rate=10_000.0)
    assert published.part("vae").read_bytes() == BODY[:3]


@pytest.mark.parametrize(
    "pieces",
    [
        row("a server that accepts and never answers", 0, happens="tried again after 60 s, then one line"),
        row("headers that arrive byte by byte", 10_000, happens="tried again after 60 s, then one line"),
    ],
)
def test_no_answer(published, pieces):
    remote = published.publish("vae", BODY)
    endless = (b"X" for _ in range(pieces))
    remote.raw, remote.seconds_per_chunk = (
        itertools.chain([b"HTTP/1.1 200 OK\r\nX: " if pieces else b""], endless),
        0.02,
    )
    if not pieces:
        remote.seconds_per_chunk = 30.0
    start = time.monotonic()
    assert "; gave up after 2 attempts" in refused(published, attempts=2, timeout_s=0.2)
    assert time.monotonic() - start < 3


# Addresses, redirects, certificates, proxies


@pytest.mark.parametrize(
    ("location", "message"),
    [
        row("a redirect to a file of this machine", "file:///etc/passwd", "not http or https", happens="one line"),
        row("a redirect to another protocol", "ftp://host/x", "not http or https", happens="one line"),
        row("a redirect to a bad address", "http://[::1/x", "Invalid", happens="one line"),
        row("a redirect to a bad port", "http://host:99999999/x", "vae.pt: ", happens="one line"),
        row("a redirect to a name of 5000 characters", f"http://{'a' * 5000}/x", "vae.pt", happens="one bounded line"),
        row("a redirect that holds escape sequences", "/\x1b]0;x\x07\x1b[2J", "404", happens="without them"),
        row("a redirect to a host that does not exist", "http://no-host.invalid/", "gave up", happens="one line"),
        row("a redirect that never ends", "/vae.pt", "more than 10 redirects", happens="one line"),
        row("a redirect with a password", f"ftp://me:{PASSWORD}@host/x?k={TOKEN}", "host/x", happens="never printed"),
    ],
)
def test_redirect(published, location, message):
    published.publish("vae", BODY).raw = [head("302 Found", Location=location, Content_Length=0)]
    line = refused(published, attempts=1)
    assert message in line
    assert PASSWORD not in line
    assert TOKEN not in line
    assert len(line) < 900


@fault("a redirect with an endless body", "its body is not read")
def test_redirect_with_a_body(published):
    published.publish("vae", BODY)
    published.publish("moved", b"").raw = itertools.chain(
        [head("302 Found", Location="/vae.pt", Content_Length=10**12)], itertools.repeat(BODY)
    )
    published.publish("image", BODY, url=f"{published.server.url}/moved.pt")
    get(published, "image")
    assert published.file("image").read_bytes() == BODY
    assert published.server.log[0].sent < 20 * SIZE


@fault("a redirect from https to http", "refused, because another file could be sent unnoticed")
def test_redirect_to_plain_http(published, monkeypatch):
    answer = downloading.requests.Response()
    answer.status_code, answer.headers["Location"], answer.raw = 302, f"{published.server.url}/vae.pt", BytesIO()
    published.publish("vae", BODY, url="https://host/vae.pt")
    monkeypatch.setattr(downloading._Session, "get", lambda *_, **__: answer)
    assert "which is not https" in refused(published)
    assert published.server.log == []


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        row(
            "a bundle of certificates that is missing",
            {"REQUESTS_CA_BUNDLE": "/none.pem"},
            "/none.pem",
            happens="one line",
        ),
        row("a bundle of certificates that is garbage", {"REQUESTS_CA_BUNDLE": __file__}, "", happens="one line"),
        row("a proxy that is no address", {"HTTPS_PROXY": "http://[:x"}, "", happens="one line"),
        row(
            "a proxy that is not reached",
            {"HTTPS_PROXY": f"http://me:{PASSWORD}@127.0.0.1:9"},
            "gave up",
            happens="one line, without its password",
        ),
    ],
)
def test_environment(published, monkeypatch, environment, message):
    published.publish("vae", BODY, url="https://127.0.0.1:9/vae.pt")
    monkeypatch.delenv("NO_PROXY")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    line = refused(published, attempts=1)
    assert line.startswith("https://127.0.0.1:9/vae.pt: ")
    assert message in line
    assert PASSWORD not in line


@pytest.mark.parametrize("answer", ["ok", "cut", "missing", "refused", "page", "digest"])
@fault("a url with a password and a token", "neither is printed in any message nor stored", "a file that is right")
def test_url_with_a_password(published, answer, capsys):
    from profiling.checkpoints.__main__ import main

    host = "127.0.0.1:9" if answer == "refused" else published.server.url.removeprefix("http://")
    url = f"http://me:{PASSWORD}@{host}/vae.pt?token={TOKEN}"
    remote = published.publish("vae", BODY, url=url, **({"sha256": "0" * 64} if answer == "digest" else {}))
    published.server.files[f"/vae.pt?token={TOKEN}"] = remote
    remote.cuts = [1000, 0, 0, 0, 0, 0, 0] if answer == "cut" else []
    remote.raw = {"missing": [head("404 Not Found", Content_Length=0)], "page": [head(Content_Length=1), b"<"]}.get(
        answer
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloading.time, "sleep", lambda seconds: None)
        assert main(["--manifest", str(published.manifest)]) == {"ok": 0, "digest": 2}.get(answer, 1)
    printed = "".join(capsys.readouterr())
    stored = [file.read_bytes() for file in published.root.rglob("*") if file.is_file() and file != published.manifest]
    for secret in (PASSWORD, TOKEN):
        assert secret not in printed
        assert not any(secret.encode() in content for content in stored)


@pytest.mark.parametrize(
    "answer",
    [
        row("an HTTP reason with escape sequences", head("404 \x1b[2J\x1b]0;x\x07No"), happens="printed without them"),
        row("an HTTP reason of 60,000 characters", head(f"404 {'x' * 60_000}"), happens="one bounded line"),
        row("a header of 1 MB", head(ETag="x" * 1_000_000), happens="one bounded line"),
        row("a million headers", head(**{f"X{i}": i for i in range(100_000)}), happens="one bounded line"),
        row("an answer that is not HTTP", b"\x1b[31mSSH-2.0\r\n\r\n", happens="one bounded line"),
    ],
)
def test_text_of_a_server(published, answer):
    published.publish("vae", BODY).raw = [answer]
    assert len(refused(published, attempts=1)) < 600


@pytest.mark.parametrize(
    "etag",
    [
        row("a version (ETag) with escape sequences", '"\x1b[2J"', happens="not used: nothing is resumed"),
        row("a version (ETag) of 60,000 characters", "x" * 60_000, happens="not used: nothing is resumed"),
    ],
)
def test_version_that_cannot_be_sent_back(published, etag):
    remote = published.publish("vae", BODY)
    remote.cuts, remote.etag = [1_000_000], etag
    get(published)
    assert published.file("vae").read_bytes() == BODY
    assert [served.range for served in published.server.log] == [None, None]


# Interrupted, and two at once


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


def until(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    "how",
    [
        row("Ctrl-C during a download", signal.SIGINT, happens="one line, exit 130", kept="what has arrived: resumed"),
        row("a download is killed (SIGKILL)", signal.SIGKILL, happens="", kept="what has arrived: resumed"),
    ],
)
def test_stopped_download(published, how):
    remote = published.publish("image", BODY)
    remote.seconds_per_chunk = 0.05
    part = published.part("image")
    process = start_command(published)
    until(lambda: part.exists() and part.stat().st_size > 500_000)
    process.send_signal(how)
    output, _ = process.communicate(timeout=20)
    kept = part.stat().st_size
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert f"error: interrupted; {kept / 2**20:.1f} MiB of 1.9 MiB have arrived and are kept" in output
    assert not published.file("image").exists()
    remote.seconds_per_chunk = 0.0
    assert run_command(published).returncode == 0
    assert published.file("image").read_bytes() == BODY
    assert published.server.log[-1].sent == SIZE - kept


def start_one_after_the_other(published, remote) -> tuple[subprocess.Popen, subprocess.Popen]:
    """Return a process that downloads slowly, and one that waits for it."""
    remote.seconds_per_chunk = 0.5
    first = start_command(published)
    until(lambda: published.part("image").exists())
    second = start_command(published)
    assert second.stdout is not None
    assert second.stdout.readline() == "image: another process is downloading it, waiting\n"
    return first, second


@fault("two processes download the same file", "the second waits, then verifies", "one download")
def test_two_processes(published):
    remote = published.publish("image", BODY)
    first, second = start_one_after_the_other(published, remote)
    remote.seconds_per_chunk = 0.0
    outputs = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert published.file("image").read_bytes() == BODY
    assert len(published.server.log) == 1
    assert published.partial_files() == []
    assert SHA256 in published.lock.read_text()


@fault("Ctrl-C while another process downloads the file", "exit 130", "the other's download, to the last byte")
def test_interrupted_while_waiting(published):
    remote = published.publish("image", BODY)
    remote.etag = None
    first, second = start_one_after_the_other(published, remote)
    second.send_signal(signal.SIGINT)
    assert second.wait(timeout=20) == 130
    second.communicate()
    remote.seconds_per_chunk = 0.0
    assert first.wait(timeout=20) == 0, first.communicate()
    first.communicate()
    assert published.file("image").read_bytes() == BODY
    assert len(published.server.log) == 1


@fault("two processes record two files at once", "both are recorded")
def test_two_processes_record(published):
    for name in ("image", "audio"):
        published.publish(name, BODY)
    processes = [start_command(published, name) for name in ("image", "audio")]
    assert [process.wait(timeout=30) for process in processes] == [0, 0]
    assert {published.entry(name).sha256 for name in ("image", "audio")} == {SHA256}
    for process in processes:
        process.communicate()


# The manifest and the lock file


GOOD = {
    "name": "vae",
    "components": ["decoder"],
    "size_class": "1M",
    "path": "checkpoints/vae.pt",
    "url": "https://host/vae.pt",
}


def loaded(folder: Path, content: object) -> str:
    """Return the one line with which a manifest is refused."""
    manifest = folder / "checkpoints" / "manifest.yaml"
    manifest.parent.mkdir(exist_ok=True)
    manifest.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        load_manifest(manifest)
    assert time.monotonic() - start < 5
    assert str(manifest.parent) in str(caught.value)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        row("a path with NUL", "checkpoints/a\0b.pt", happens="one line, exit 2"),
        row("a path with escape sequences", "checkpoints/\x1b[2J.pt", happens="one line, exit 2, without them"),
        row("a path with a lone surrogate", "checkpoints/\ud800.pt", happens="one line, exit 2"),
        row("a path whose file name has 300 characters", f"checkpoints/{'a' * 300}", happens="one line, exit 2"),
        row("a path of 100,000 characters", f"checkpoints/{'a/' * 50_000}b", happens="one line, exit 2"),
        row("an absolute path", "/etc/passwd", happens="one line, exit 2"),
        row("a path that climbs out with ..", "checkpoints/../../x.pt", happens="one line, exit 2"),
        row("a path with a slash at its end", "checkpoints/vae/", happens="one line, exit 2"),
        row("a path that is the lock file", "checkpoints/lock.yaml", happens="one line, exit 2", kept="the lock file"),
        row(
            "a path that is the manifest", "checkpoints/Manifest.yaml", happens="one line, exit 2", kept="the manifest"
        ),
        row("a path among the locks of downloads", "checkpoints/.locks/x", happens="one line, exit 2"),
        row("a path that is an unfinished download", "checkpoints/b.pt.part", happens="one line, exit 2"),
    ],
)
def test_path_in_the_manifest(tmp_path, path):
    assert "path" in loaded(tmp_path, {"files": [GOOD | {"path": path}]})


@pytest.mark.parametrize(
    ("second", "message"),
    [
        row("two paths that differ only in case", {"path": "checkpoints/VAE.pt"}, "only in case", happens="one line"),
        row("two names that differ only in case", {"name": "Vae"}, "only in case", happens="one line, exit 2"),
        row(
            "a path below another file",
            {"path": "checkpoints/vae.pt/b"},
            "is a file, and another entry",
            happens="one line, exit 2",
        ),
    ],
)
def test_two_entries_that_collide(tmp_path, second, message):
    other = GOOD | {"name": "other", "path": "checkpoints/other.pt"}
    assert message in loaded(tmp_path, {"files": [GOOD, other | second]})


@pytest.mark.parametrize(
    "changed",
    [
        row("a name with control characters", {"name": "a\x1b[2J"}, happens="one line, exit 2"),
        row("a name with a line break at its end", {"name": "vae\n"}, happens="one line, exit 2"),
        row("a name that begins like an option", {"name": "--help"}, happens="one line, exit 2"),
        row("a name of 10,000 characters", {"name": "a" * 10_000}, happens="one line, exit 2"),
        row("a component's name with escape sequences", {"components": ["\x1b[2J"]}, happens="one line, exit 2"),
        row("a url whose port is no number", {"url": f"http://me:{PASSWORD}/@h/"}, happens="one line; never printed"),
        row("a url with a line break", {"url": "http://host/a\nb"}, happens="one line, exit 2"),
    ],
)
def test_entry_of_the_manifest(tmp_path, changed):
    line = loaded(tmp_path, {"files": [GOOD | changed]})
    assert "is invalid: " in line
    assert PASSWORD not in line
    assert len(line) < 400


MERGES = "\n".join(f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12))
NOT_YAML = [
    row("a manifest that is not UTF-8", b"files: \xff\xfe", happens="one line, exit 2"),
    row("YAML that holds itself", b"files: &a [*a]", happens="one line, exit 2"),
    row("YAML that explodes", f"a0: &a0 {{b: c}}\n{MERGES}\nfiles: *a11".encode(), happens="one line, exit 2"),
    row("YAML nested 2000 deep", b"files: " + b"[" * 2000, happens="one line, exit 2"),
    row("a number of 5000 digits", b"files: " + b"9" * 5000, happens="one line, exit 2"),
    row("YAML with a tag that is false", b"files: !!bool perhaps", happens="one line, exit 2"),
    row("YAML with a tag that runs code", b"files: !!python/object/apply:os.abort []", happens="one line, exit 2"),
    row("a syntax error beside a password", f"url: http://:{PASSWORD}@h\n [".encode(), happens="one line without it"),
]


@pytest.mark.parametrize("content", NOT_YAML)
def test_manifest_that_is_not_yaml(tmp_path, content):
    line = loaded(tmp_path, content)
    assert PASSWORD not in line
    assert len(line) < 500


@pytest.mark.parametrize("content", [values.values[0] for values in NOT_YAML])
@fault("a damaged lock.yaml, of all these kinds", "one line, exit 2: restore it with git checkout", "the file")
def test_damaged_lock_file(tmp_path, content):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "lock.yaml").write_bytes(content)
    assert "restore it with git checkout" in loaded(tmp_path, {"files": [GOOD]})
    assert (tmp_path / "checkpoints" / "lock.yaml").read_bytes() == content


@pytest.mark.parametrize("name", ["manifest.yaml", "lock.yaml"])
@pytest.mark.parametrize(
    "make",
    [
        row("a manifest or lock file that is a pipe", os.mkfifo, happens="one line, exit 2, at once"),
        row("a manifest or lock file that is a folder", os.mkdir, happens="one line, exit 2"),
        row(
            "a manifest or lock file of 100 MB",
            lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 100_000_000),
            happens="one line, exit 2, without reading it all",
        ),
        row(
            "a manifest or lock file that is a device",
            lambda path: path.symlink_to("/dev/zero"),
            happens="one line, exit 2, at once",
        ),
    ],
)
def test_manifest_that_is_no_file(tmp_path, peak, name, make):
    manifest = tmp_path / "checkpoints" / "manifest.yaml"
    manifest.parent.mkdir()
    make(manifest.with_name(name))
    if name != manifest.name:
        manifest.write_text(json.dumps({"files": [GOOD]}))
    with peak(20), pytest.raises(InputError, match=r"is not a regular file|is larger than"):
        load_manifest(manifest)


@fault("a folder of checkpoints that is a link to another disk", "downloaded there: the link is the user's own")
def test_link_to_another_disk(published):
    published.publish("vae", BODY)
    (published.root / "elsewhere").mkdir()
    published.file("vae").parent.symlink_to(published.root / "elsewhere")
    get(published)
    assert (published.root / "elsewhere" / published.file("vae").name).read_bytes() == BODY


@fault("an entry with the name of the lock file", "downloaded and recorded; it used to wait for itself")
def test_name_of_the_lock_file(published):
    published.publish("lock.yaml", BODY, path="checkpoints/vaes/vae.pt")
    get(published, "lock.yaml")
    assert published.entry("lock.yaml").sha256 == SHA256


# Checkpoint files


STATE = {"weight": torch.ones(4, 4), "bias": torch.ones(4)}
MIB = 2**20


@pytest.fixture
def peak():
    """Return a context that fails when the process takes more than so many MiB in it."""

    class Peak:
        def __init__(self, limit_mib):
            self.limit_mib = limit_mib

        def status(self, field):
            lines = Path("/proc/self/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024

        def __enter__(self):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            self.before = self.status("VmRSS")

        def __exit__(self, *_):
            assert self.status("VmHWM") - self.before < self.limit_mib

    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("reads /proc")
    return Peak


def saved(folder: Path, content: object = STATE, *, legacy: bool = False) -> Path:
    torch.save(content, folder / "w.pt", _use_new_zipfile_serialization=not legacy)
    return folder / "w.pt"


def rewritten(folder: Path, change=lambda archive: None, compression=zipfile.ZIP_STORED, **records: bytes) -> Path:
    """Return a checkpoint with other `records`, after `change` has changed what its directory says."""
    path = saved(folder)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression, compresslevel=1) as archive:
        for name, content in (contents | {f"w/{name}.pkl": content for name, content in records.items()}).items():
            archive.writestr(name, content)
        change(archive)
    return path


def claim_gigabytes(archive: zipfile.ZipFile) -> None:
    for record in archive.filelist[1:]:
        record.file_size = record.compress_size = 2**33


def share_one_place(archive: zipfile.ZipFile) -> None:
    for number in range(1000):
        record = zipfile.ZipInfo(f"w/data/1{number}")
        record.header_offset, record.CRC = archive.filelist[0].header_offset, 0
        record.file_size = record.compress_size = archive.filelist[0].file_size
        archive.filelist.append(record)


def claim_storage(path: Path, elements: int, folder: Path) -> Path:
    """Return the checkpoint with a pickle that says that the storage of 16 elements has `elements`."""
    numbers = b"\x8a\x08" + struct.pack("<q", elements)
    if not zipfile.is_zipfile(path):
        path.write_bytes(path.read_bytes().replace(b"K\x10", numbers))
        return path
    with zipfile.ZipFile(path) as archive:
        return rewritten(folder, data=archive.read("w/data.pkl").replace(b"K\x10", numbers))


class Calls:
    """Calls `function` when it is unpickled."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def nested_encodings(times: int) -> bytes:
    """Return a pickle that asks for 2**times bytes: a hex code is twice as long as what it encodes."""
    call = b"c_codecs\nencode\n"
    text = call + b"X\x01\x00\x00\x00aX\x06\x00\x00\x00latin1\x86R"
    for _ in range(times):
        text = call + text + b"X\x03\x00\x00\x00hex\x86R"
    return b"\x80\x02" + text + b"."


def appended(path: Path, content: bytes) -> Path:
    path.write_bytes(path.read_bytes() + content)
    return path


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
        server.bind(path.name)


def safetensors(folder: Path, length: int, header: bytes = b'{"a": 1}') -> Path:
    (folder / "w.safetensors").write_bytes(struct.pack("<Q", length) + header)
    return folder / "w.safetensors"


EXPANDED = torch.ones(1).expand(300 * MIB)
CONVERT = Calls(torch._utils._rebuild_device_tensor_from_cpu_tensor, EXPANDED, torch.int8, "cpu", False)
OFFSETS = b'{"a":{"dtype":"F32","shape":[2500000000],"data_offsets":[0,10000000000]}}'


def bomb(planted, make, message):
    return row(planted, make, message, happens="refused in one line, before it takes memory", kept="the file")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        bomb(
            "a zip bomb: records compressed a thousandfold",
            lambda folder: rewritten(folder, compression=zipfile.ZIP_DEFLATED, data=bytes(100 * MIB)),
            "its records are compressed",
        ),
        bomb("a zip whose records claim gigabytes", lambda folder: rewritten(folder, claim_gigabytes), "damaged"),
        bomb("a zip whose 1000 records overlap", lambda folder: rewritten(folder, share_one_place), "damaged"),
        bomb(
            "a zip whose directory torch and Python find in two places",
            lambda folder: appended(rewritten(folder), b"PK\x05\x06" + bytes(18)),
            "damaged",
        ),
        bomb(
            "a pickle that allocates memory",
            lambda folder: saved(folder, {"a": Calls(bytearray, 300 * MIB)}),
            "requests __builtin__.bytearray",
        ),
        bomb(
            "a pickle of the legacy format that allocates memory",
            lambda folder: saved(folder, {"a": Calls(bytearray, 300 * MIB)}, legacy=True),
            "requests __builtin__.bytearray",
        ),
        bomb(
            "a pickle of 2 KB that doubles a text 28 times",
            lambda folder: rewritten(folder, data=nested_encodings(28)),
            "requests _codecs.encode",
        ),
        bomb(
            "a pickle that converts one number shown 300 million times",
            lambda folder: saved(folder, {"a": CONVERT}),
            "requests torch._utils._rebuild_device_tensor_from_cpu_tensor",
        ),
        bomb(
            "a pickle of millions of empty sets",
            lambda folder: rewritten(folder, data=b"\x80\x02(" + b"\x8f" * 400_000 + b"l."),
            "more than 100000 operations",
        ),
        bomb(
            "a legacy checkpoint that claims 40 TB of weights",
            lambda folder: claim_storage(saved(folder, legacy=True), 10**13, folder),
            "damaged",
        ),
        bomb(
            "a checkpoint that claims fewer than no weights",
            lambda folder: claim_storage(saved(folder), -5, folder),
            "damaged",
        ),
        bomb("a safetensors header longer than the file", lambda folder: safetensors(folder, 1000), "has 16 bytes"),
        bomb("a safetensors header of 10 GB", lambda folder: safetensors(folder, 10**10), "have 10000000000"),
        bomb("a safetensors header without a length", lambda folder: safetensors(folder, 0), "have 0"),
        bomb(
            "a safetensors file that claims 10 GB of weights",
            lambda folder: safetensors(folder, len(OFFSETS), OFFSETS),
            "MetadataIncompleteBuffer|incomplete",
        ),
    ],
)
def test_bomb(tmp_path, peak, monkeypatch, make, message):
    monkeypatch.setattr(checkpoint_format, "_MOST_OPCODES", 100_000)  # of 2,000,000: a test of seconds
    path = make(tmp_path)
    assert path.stat().st_size < 4 * MIB
    with peak(30), pytest.raises(InputError, match=message) as caught:
        load_into(torch.nn.Linear(4, 4), path)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@fault("a tensor that claims to be larger than its storage", "refused: does not fit; no memory is taken")
def test_tensor_larger_than_its_storage(tmp_path, peak, legacy):
    storage = torch.ones(16)._typed_storage()
    rebuilt = Calls(torch._utils._rebuild_tensor_v2, storage, 0, (10**9,), (1,), False, OrderedDict())
    path = saved(tmp_path, {"weight": rebuilt, "bias": torch.ones(4)}, legacy=legacy)
    with peak(30), pytest.raises(InputError, match=r"does not fit|damaged"):
        load_into(torch.nn.Linear(4, 4), path)


@fault("a checkpoint that claims a storage larger than the file", "the part that is there is read: no memory is taken")
def test_storage_larger_than_the_file(tmp_path, peak):
    path = claim_storage(saved(tmp_path), 10**13, tmp_path)
    with peak(30):
        assert torch.equal(read(path)["weight"], STATE["weight"])


@pytest.mark.parametrize(
    "name",
    [
        row("a tensor name with escape sequences", "\x1b[2J\x1b]0;x\x07", happens="refused, printed without them"),
        row("a tensor name of 1 MB", "x" * MIB, happens="refused in one bounded line"),
        row("a tensor name with a lone surrogate", "\ud800", happens="refused, printed without it"),
    ],
)
@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_tensor_name(tmp_path, name, form):
    if form == "safetensors":
        if name == "\ud800":
            pytest.skip("a safetensors header is UTF-8")
        path = tmp_path / "w.safetensors"
        save_file({name: torch.ones(2)}, path)
    else:
        path = saved(tmp_path, {name: torch.ones(2)}, legacy=form == "legacy")
    with pytest.raises(InputError, match="is not a name") as caught:
        load_into(torch.nn.Linear(4, 4), path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "make",
    [
        row("a checkpoint that is a pipe", os.mkfifo, happens="one line, at once"),
        row("a checkpoint that is a folder", os.mkdir, happens="one line, at once"),
        row("a checkpoint that is a device", lambda path: path.symlink_to("/dev/zero"), happens="one line, at once"),
        row("a checkpoint that is a socket", lambda path: listen(path), happens="one line, at once"),
        row("a checkpoint that is a link to itself", lambda path: path.symlink_to(path), happens="one line, at once"),
        row("a checkpoint that is missing", lambda path: None, happens="one line: similar names of the folder"),
        row("a checkpoint that is empty", lambda path: path.touch(), happens="one line, at once"),
    ],
)
def test_checkpoint_that_is_no_file(tmp_path, make):
    make(tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"is a folder|not a regular file|does not exist|cannot be read|is empty"):
        read(tmp_path / "w.pt")


@pytest.mark.parametrize(
    "path",
    [
        row("a checkpoint's path with NUL", "a\0b.pt", happens="one line"),
        row("a checkpoint's path of 300 characters", "a" * 300, happens="one line"),
        row("a checkpoint's path with escape sequences", "\x1b[2J.pt", happens="printed without them"),
    ],
)
def test_path_of_a_checkpoint(path):
    spec = ComponentSpec("mine", {"_target_": "torch.nn.Linear"}, {"input": {"shape": [2]}}, checkpoint=path)
    with pytest.raises(InputError, match=r"does not exist|cannot be read: File name too long") as caught:
        give_weights(torch.nn.Linear(2, 2), spec, Settings())
    assert str(caught.value).isprintable()


@fault("a checkpoint that cannot be read (permissions)", "one line: Permission denied")
def test_checkpoint_without_read_permission():
    with reachable_folder() as folder:
        path = saved(folder)
        path.chmod(0)
        with as_nobody(), pytest.raises(InputError, match="cannot be read: Permission denied"):
            read(path)


@pytest.mark.parametrize("how", ["zip", "zip protocol 4", "legacy", *(f"raw {number}" for number in range(6))])
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@fault("a pickle that runs code", "refused: names what it requests; nothing runs", "the file")
def test_pickle_with_code(tmp_path, how, name, recwarn):
    marker, path = tmp_path / "marker", tmp_path / name
    content = {"a": torch.ones(2), "bomb": Calls(os.mkdir, str(marker))}
    if how.startswith("raw"):
        path.write_bytes(pickle.dumps({"bomb": content["bomb"]}, protocol=int(how[-1])))
    else:
        torch.save(
            content, path, _use_new_zipfile_serialization=how != "legacy", pickle_protocol=4 if "4" in how else 2
        )
    with pytest.raises(InputError) as caught:
        read(path)
    assert not marker.exists()
    assert not recwarn.list
    if name == "w.safetensors":
        assert "not a safetensors file" in str(caught.value)
    elif how in ("zip", "legacy"):
        assert "is refused: its pickle requests posix.mkdir" in str(caught.value)
    pickle.loads(pickle.dumps(content["bomb"]))
    assert marker.exists()  # the bomb works


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
@fault("a checkpoint that is cut anywhere", "one line: damaged, cut short", "the file")
def test_checkpoint_that_is_cut(tmp_path, form):
    if form == "safetensors":
        save_file(STATE, tmp_path / "w.pt")
    whole = (tmp_path / "w.pt" if form == "safetensors" else saved(tmp_path, legacy=form == "legacy")).read_bytes()
    for length in sorted({1, 2, 7, 8, 9, 10, len(whole) - 1, *range(16, len(whole), max(1, len(whole) // 150))}):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        with pytest.raises(InputError) as caught:
            read(tmp_path / "cut.pt")
        assert str(caught.value).isprintable()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@fault("a TorchScript program instead of weights", "refused: save its state_dict() instead")
def test_torchscript_program(tmp_path):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), str(tmp_path / "w.pt"))
    with pytest.raises(InputError, match="is a TorchScript program"):
        read(tmp_path / "w.pt")
