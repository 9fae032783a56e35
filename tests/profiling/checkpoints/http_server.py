"""A real HTTP server on the loopback interface, with the faults of real ones on order and a log of what it sent."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    path: str
    range: str | None
    status: int
    sent: int


@dataclass
class Remote:
    """One file on the server; `statuses` and `cuts` are used up by the next answers, in turn (None: no fault)."""

    body: bytes
    etag: str | None = '"v1"'
    modified: str | None = None
    ranges: bool = True
    checks_if_range: bool = True
    announced: int | None = None  # a Content-Length that is not the body's
    no_length: bool = False
    statuses: list[int | None] = field(default_factory=list)
    cuts: list[int | None] = field(default_factory=list)
    seconds_per_chunk: float = 0.0
    raw: Iterable[bytes] | None = None  # an answer sent as it is, piece by piece, instead of the file
    resets: bool = False  # a cut is a reset of the connection, not its end


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, Remote] = {}
        self.log: list[Served] = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass  # a client that went away is part of the tests


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self):
        remote = self.server.files.get(self.path)
        status = remote.statuses.pop(0) if remote and remote.statuses else None
        served = Served(self.path, self.headers.get("Range"), status or 200, 0)
        self.server.log.append(served)
        if remote is None or status:
            served.status = status or 404
            self.send_response(served.status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif remote.raw is not None:
            self._send_pieces(remote.raw, remote, served)
        else:
            self._send_file(remote, served)

    def _send_file(self, remote: Remote, served: Served):
        start, size = self._start(remote), len(remote.body)
        if start:
            served.status = 206 if start < size else 416
        self.send_response(served.status)
        if remote.etag:
            self.send_header("ETag", remote.etag)
        if remote.modified:
            self.send_header("Last-Modified", remote.modified)
        if start:
            span = f"{start}-{size - 1}" if start < size else "*"
            self.send_header("Content-Range", f"bytes {span}/{size}")
        body = remote.body[start:]
        if not remote.no_length:
            self.send_header("Content-Length", str(remote.announced or len(body)))
        self.end_headers()
        cut = remote.cuts.pop(0) if remote.cuts else None
        self._send_pieces(
            (body[:cut][at : at + 64 * 1024] for at in range(0, len(body[:cut]), 64 * 1024)), remote, served
        )
        if cut is not None and remote.resets:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _send_pieces(self, pieces: Iterable[bytes], remote: Remote, served: Served):
        self.close_connection = True
        for piece in pieces:
            self.wfile.write(piece)
            served.sent += len(piece)
            if self.server.closing.wait(remote.seconds_per_chunk):
                return

    def _start(self, remote: Remote) -> int:
        asked, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if not asked or not remote.ranges:
            return 0
        if remote.checks_if_range and condition not in (None, remote.etag, remote.modified):
            return 0
        return int(asked.removeprefix("bytes=").rstrip("-"))

    def log_message(self, format, *args):
        pass


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
