"""A small HTTP server on loopback that answers as told, in every wrong way that a network and a bad server know."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Reply = Callable[["FaultServer", socket.socket, Request], None]


def http(status: int, body: bytes, *, length: int | None = None, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def reply(status: int = 200, body: Any = b"", **kw: Any) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return raw(http(status, data, **kw))


def raw(data: bytes) -> Reply:
    return lambda _server, conn, _request: conn.sendall(data)


def computed(function: Callable[[Request], Any]) -> Reply:
    """JSON computed from the request."""
    return lambda _server, conn, request: conn.sendall(http(200, json.dumps(function(request)).encode()))


def events(*items: Any, done: bool = True, end: bool = True) -> Reply:
    """An event stream in chunked coding; ``done`` sends [DONE], ``end`` the last chunk (else the connection is cut)."""

    def send(_server: FaultServer, conn: socket.socket, _request: Request) -> None:
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        lines = [f"data: {json.dumps(item)}\n\n".encode() for item in items] + ([b"data: [DONE]\n\n"] if done else [])
        for line in lines:
            conn.sendall(b"%x\r\n%s\r\n" % (len(line), line))
        if end:
            conn.sendall(b"0\r\n\r\n")

    return send


def silent(first: bytes = b"") -> Reply:
    """Send ``first``, then never anything more, until the server is closed."""

    def send(server: FaultServer, conn: socket.socket, _: Request) -> None:
        conn.sendall(first)
        server.closing.wait(30)

    return send


def drip(data: bytes, pause: float) -> Reply:
    """One byte after the other."""

    def send(server: FaultServer, conn: socket.socket, _request: Request) -> None:
        for i in range(len(data)):
            conn.sendall(data[i : i + 1])
            if server.closing.wait(pause):
                return

    return send


def reset() -> Reply:
    """RST instead of an answer."""

    def send(_server: FaultServer, conn: socket.socket, _request: Request) -> None:
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return send


def flood(head: bytes, block: bytes) -> Reply:
    """``head``, then ``block`` without end."""

    def send(server: FaultServer, conn: socket.socket, _request: Request) -> None:
        conn.sendall(head)
        while not server.closing.is_set():
            conn.sendall(block)

    return send


@dataclass
class FaultServer:
    """``routes[path]`` are replies, one per request, the last one for ever. Bound at once; ``listen()`` opens it."""

    routes: dict[str, list[Reply]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def on(self, path: str, *replies: Reply) -> FaultServer:
        with self._lock:
            self.routes[path] = list(replies)
        return self

    def paths(self) -> list[str]:
        return [r.path for r in self.requests]

    def __enter__(self) -> FaultServer:
        return self.listen()

    def listen(self) -> FaultServer:
        self._socket.listen(64)
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive(), "a server thread hangs"

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                conn, _ = self._socket.accept()
            except OSError:
                return
            self._spawn(self._serve, conn)

    def _serve(self, conn: socket.socket) -> None:
        with conn:
            conn.settimeout(30)
            try:
                request = _read(conn)
                if request is None:
                    return
                with self._lock:
                    self.requests.append(request)
                    replies = self.routes.get(request.path) or [reply(404, {"detail": "Not Found"})]
                    chosen = replies.pop(0) if len(replies) > 1 else replies[0]
                chosen(self, conn, request)
            except OSError:
                return  # the client is gone


def _read(conn: socket.socket) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = conn.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in rest)}
    while len(body) < int(headers.get("content-length", 0)):
        more = conn.recv(65536)
        if not more:
            return None
        body += more
    method, path, _ = first.split(" ", 2)
    return Request(method, path, headers, body)


def completion(text: str = " Paris.", *, tokens: int = 3, **more: Any) -> dict[str, Any]:
    """The body of a good answer of ``/v1/completions``."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "m",
        "choices": [{"index": 0, "text": text, "finish_reason": "length", "logprobs": None}],
        "usage": {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens},
        "system_fingerprint": "fp-1",
        **more,
    }


def chat_completion(text: str | None = "Hello.", *, tokens: int = 3, **message: Any) -> dict[str, Any]:
    """The body of a good answer of ``/v1/chat/completions``."""
    body = completion("", tokens=tokens)
    said = {"role": "assistant", "content": text, **message}
    return {**body, "choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}
