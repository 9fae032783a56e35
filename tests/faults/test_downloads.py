"""Checkpoints and downloads."""

import gzip
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from table import promise, rows

from profiling import checkpoints
from profiling.components import manifest, weights
from profiling.components.checkpoint import load_into
from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[2]


def content_of(seed: int) -> bytes:
    file = BytesIO()
    torch.save({"weight": torch.randn(500_000, generator=torch.Generator().manual_seed(seed))}, file)
    return file.getvalue()


BODY, OTHER = content_of(0), content_of(1)
SIZE, HALF = len(BODY), 1_000_000
SHA256 = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves the attribute `body` of its server; `cuts` and `statuses` are used up by the next answers."""

    def do_GET(self):
        server, start = self.server, 0
        status = server.statuses.pop(0) if server.statuses else 404 if "gone" in self.path else 200
        if (asked := self.headers.get("Range")) and server.ranges and self.headers["If-Range"] in server.accepts():
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            status = 206 if start < len(server.body) else 416
        body = server.body[start:] if status in (200, 206) else b""
        self.send_response(status)
        span = f"{start}-{len(server.body) - 1}" if body else "*"
        headers = {"ETag": server.etag, "Content-Range": start and f"bytes {span}/{len(server.body)}"}
        for name, value in (headers | {"Content-Length": str(len(body))} | server.headers).items():
            if value:
                self.send_header(name, value)
        body = body[: server.cuts.pop(0) if server.cuts else None]
        server.sent.append(len(body))  # Before the answer: a client that needs no body is done once it has the headers.
        self.end_headers()
        for at in range(0, len(body), 100_000):
            self.wfile.write(body[at : at + 100_000])
            time.sleep(server.seconds_per_chunk)

    def log_message(self, format, *args):
        pass


class Published(ThreadingHTTPServer):
    """A server of one file, and a repository in `root` whose manifest lists it as `vae`."""

    daemon_threads = True

    def __init__(self, root: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.etag, self.ranges, self.trusts_any_version = BODY, '"v1"', True, False
        self.headers, self.cuts, self.statuses, self.sent, self.seconds_per_chunk = {}, [], [], [], 0.0
        self.root, self.folder = root, root / "checkpoints"
        self.file, self.lock = self.folder / "a" / "vae.pt", self.folder / "lock.yaml"
        self.part, self.manifest = Path(f"{self.file}.part"), self.folder / "manifest.yaml"
        self.folder.mkdir()
        self.list_files("vae")

    def list_files(self, *names):
        url = f"http://127.0.0.1:{self.server_address[1]}"
        files = [
            {
                "name": name,
                "components": [f"{name}_decoder"],
                "path": f"checkpoints/a/{name}.pt",
                "url": f"{url}/{name}",
            }
            for name in names
        ]
        self.manifest.write_text(json.dumps({"files": files}))

    def accepts(self) -> tuple:
        return (self.etag, '"v1"') if self.trusts_any_version else (self.etag,)

    def handle_error(self, request, client_address):
        pass  # a client that went away is part of the tests

    def partial_files(self) -> list[str]:
        return sorted(path.name for path in self.root.rglob("*.part*"))


@pytest.fixture
def published(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(checkpoints, "PAUSES_S", (0.0,))  # one attempt after the first
    with Published(tmp_path) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def get(published, capsys):
    """Return a function that runs the command and returns its exit code and what it printed."""

    def get(*names: str) -> tuple[int, str]:
        code = checkpoints.main(["--manifest", str(published.manifest), *names])
        printed = capsys.readouterr()
        assert printed.err.count("\n") == (code != 0)
        assert published.file.exists() is (code == 0) or code == 2
        assert code != 0 or published.file.read_bytes() == published.body
        return code, printed.out + printed.err

    return get


def start(published, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "profiling.checkpoints", "--manifest", str(published.manifest)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=REPOSITORY, **pipes, **options)


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_download_is_whole_recorded_and_not_repeated(published, get):
    assert "sha256 recorded in lock.yaml" in get("vae_decoder")[1]
    assert published.lock.read_text() == f"vae: {SHA256}\n"
    assert "sha256 verified" in get()[1]
    assert published.lock.read_text() == f"vae: {SHA256}\n"
    assert published.sent == [SIZE]
    assert published.partial_files() == []


@promise("cut download")
def test_cut_body_is_resumed(published, get):
    published.cuts = [HALF]
    assert get()[0] == 0
    assert sum(published.sent) < SIZE + 300_000  # what was in the buffer of the cut connection is sent again


@promise("cut download")
def test_cut_body_is_resumed_by_the_next_run(published, get):
    published.cuts = [HALF, 10]
    code, printed = get()
    assert code == 1
    assert re.search(r"To go on: .*-m profiling\.checkpoints vae$", printed)
    kept = published.part.stat().st_size
    assert HALF - 300_000 < kept <= HALF
    assert get()[0] == 0
    assert published.sent[-1] == SIZE - kept


@promise("changed download")
@pytest.mark.parametrize(
    "changed",
    rows(
        ({"ranges": False}, "a server ignores the request to resume"),
        ({"etag": ""}, "a server names no version of its file"),
        ({"body": OTHER, "etag": '"v2"'}, "the remote file changes between two attempts"),
        ({"body": OTHER, "etag": '"v2"', "trusts_any_version": True}, "the same, and any two versions are joined"),
    ),
)
def test_what_cannot_be_resumed(published, get, changed):
    published.cuts = [HALF, 0]
    assert get()[0] == 1
    vars(published).update(changed)
    assert get()[0] == 0
    assert SIZE in published.sent, "the whole file, in one answer; one that the client gave up may end after it"
    assert published.partial_files() == []


@promise("cut download")
def test_a_part_that_is_whole_and_a_server_that_is_busy(published, get):
    published.part.parent.mkdir()
    published.part.write_bytes(BODY)
    Path(f"{published.part}.etag").write_text('"v1"')
    assert get()[0] == 0
    assert published.sent == [0]
    published.file.unlink()
    published.statuses = [503]
    code, printed = get()
    assert code == 0
    assert "HTTP 503 Service Unavailable; trying again in 0 s" in printed


@promise("wrong download")
@pytest.mark.parametrize(
    ("headers", "body", "code", "says"),
    rows(
        ({"Content-Length": None}, BODY, 1, "", "a server does not give the file's size"),
        ({"Content-Encoding": "gzip"}, gzip.compress(BODY), 1, "", "a body that expands (gzip)"),
        ({}, b"<!DOCTYPE html><h1>Log in", 2, "not a checkpoint", "a page instead of a checkpoint"),
    ),
)
def test_what_is_no_such_file_is_not_recorded(published, get, headers, body, code, says):
    published.headers, published.body = headers, body
    ended, printed = get()
    assert ended == code
    assert says in printed
    assert not published.lock.exists()
    assert code == 1 or published.partial_files() == []


@promise("wrong download")
def test_missing_remote_file(published, get):
    published.list_files("gone", "vae")
    assert checkpoints.main(["--manifest", str(published.manifest)]) == 1
    assert published.file.read_bytes() == BODY
    assert len(published.sent) == 2


@promise("wrong download")
def test_a_file_that_is_not_the_recorded_one(published, get, monkeypatch):
    published.lock.write_text(f"vae: {SHA256}\n")
    published.body = OTHER
    code, printed = get()
    assert code == 2
    assert f"lock.yaml requires {SHA256}" in printed
    assert not published.file.exists()
    published.body = BODY
    assert get()[0] == 0
    published.file.write_bytes(OTHER)
    assert get()[0] == 2
    monkeypatch.setattr(weights, "load_manifest", lambda: manifest.load_manifest(published.manifest))
    for key, named in (("vae_decoder", None), ("mine", str(published.folder / ".." / "checkpoints" / "a" / "vae.pt"))):
        spec = ComponentSpec(key, {"_target_": "torch.nn.Linear"}, {"input": {"shape": [2]}}, checkpoint=named)
        with pytest.raises(InputError, match="is not the published file"):
            weights.give_weights(torch.nn.Linear(2, 2), spec, Settings(scale="full"))
    assert published.file.read_bytes() == OTHER
    assert published.lock.read_text() == f"vae: {SHA256}\n"
    assert len(published.sent) == 2


@promise("cut download")
def test_write_fails(published, get):
    process = start(published, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, HALF)))
    assert "File too large" in process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert get()[0] == 0
    assert published.sent[1] == SIZE - HALF


@promise("cut download")
@pytest.mark.parametrize(
    "how", rows((signal.SIGINT, "Ctrl-C during a download"), (signal.SIGKILL, "a download is killed (SIGKILL)"))
)
def test_stopped_download(published, get, how):
    published.seconds_per_chunk = 0.1
    process = start(published)
    until(lambda: published.part.exists() and published.part.stat().st_size > 500_000)
    process.send_signal(how)
    output, _ = process.communicate(timeout=20)
    assert how == signal.SIGKILL or (process.returncode == 130 and "error: interrupted. To go on" in output)
    published.seconds_per_chunk, kept = 0.0, published.part.stat().st_size
    assert get()[0] == 0
    assert published.sent[-1] == SIZE - kept


@promise("two downloads")
def test_two_processes(published):
    published.seconds_per_chunk = 0.2
    first = start(published)
    until(published.part.exists)
    second = start(published)
    assert second.stdout is not None
    assert second.stdout.readline() == "another process is downloading, waiting\n"
    published.seconds_per_chunk = 0.0
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert published.file.read_bytes() == BODY
    assert published.lock.read_text() == f"vae: {SHA256}\n"
    assert len(published.sent) == 1


@promise("manifest")
def test_a_damaged_list_or_a_wrong_name(published, get):
    assert get("vea") == (2, "error: no checkpoint 'vea'. Did you mean 'vae'? There are: vae\n")
    for name, content, message in (
        ("lock.yaml", "- a", "lock.yaml"),
        ("manifest.yaml", "files: [", "manifest.yaml"),
        ("manifest.yaml", "filse: []", "`filse`"),
    ):
        (published.folder / name).write_text(content)
        code, printed = get()
        assert code == 2
        assert message in printed
    assert published.sent == []


def test_the_repositorys_manifest_is_valid():
    entries = manifest.load_manifest()
    assert len({entry.path for entry in entries}) == len(entries) >= 3
    assert all(entry.path.is_relative_to(REPOSITORY / "checkpoints") for entry in entries)


STATE = {"weight": torch.ones(4, 4), "bias": torch.ones(4)}


def saved(folder: Path, content: object, form: str = "zip") -> Path:
    path = folder / "w.pt"
    if form == "safetensors":
        save_file(content, path)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    return path


def refused(path: Path) -> str:
    """Return the one line with which a file is refused."""
    with pytest.raises(InputError) as caught:
        load_into(torch.nn.Linear(4, 4), path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 2000
    return str(caught.value)


class Calls:
    """Calls os.mkdir(path) when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@promise("pickle")
@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_pickle_with_code(tmp_path, form):
    message = refused(saved(tmp_path, STATE | {"bomb": Calls(tmp_path / "marker")}, form))
    assert "would call posix.mkdir" in message
    assert not (tmp_path / "marker").exists()
    torch.load(tmp_path / "w.pt", weights_only=False)
    assert (tmp_path / "marker").exists()  # the bomb works


@promise("damaged checkpoint")
@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_checkpoint_that_is_cut(tmp_path, form):
    whole = saved(tmp_path, STATE, form).read_bytes()
    for length in sorted({0, 1, 2, 7, 8, 9, 10, len(whole) - 1, *range(16, len(whole), max(1, len(whole) // 50))}):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        # A name of the legacy format can be cut to that of another function.
        assert "damaged, cut short" in refused(tmp_path / "cut.pt") or form == "legacy"


@promise("damaged checkpoint")
@pytest.mark.parametrize(
    ("make", "message"),
    rows(
        (os.mkfifo, "not a regular file", "a pipe"),
        (lambda path: path.symlink_to(path), "w.pt", "a link to itself"),
        (lambda path: path.symlink_to("/proc/self/mem"), "cannot be read: Input/output error", "an error of the disk"),
        (os.mkdir, "holds no safetensors", "a folder without weights"),
        (lambda path: (path.parent / "v.pt").touch(), "'v.pt'?", "a file that is missing"),
        (lambda path: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path), "not a checkpoint", "TorchScript"),
        (
            lambda path: torch.save({"\x1b[2J\x1b]0;x\x07": torch.ones(2)}, path),
            *("does not fit Linear: 2 missing (weight; bias), 1 unexpected", "a name with escape sequences"),
        ),
    ),
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_no_checkpoint(tmp_path, make, message):
    make(tmp_path / "w.pt")
    assert message in refused(tmp_path / "w.pt")


@promise("damaged checkpoint")
def test_path_of_a_checkpoint():
    for path in ("a\0b.pt", "a" * 300):
        spec = ComponentSpec("mine", {"_target_": "torch.nn.Linear"}, {"input": {"shape": [2]}}, checkpoint=path)
        with pytest.raises(InputError, match=r"does not exist|cannot be read: File name too long"):
            weights.give_weights(torch.nn.Linear(2, 2), spec, Settings())
