"""HTTP to the engine under test: bounded in time and size whatever the other side does, and only to addresses of ours.

A request never raises for what the network or the server does: what went wrong is in the ``Answer``. The limit of time
is for the whole answer (headers and body), so a server that drips one byte a second can't hold it open.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import threading
import time
import urllib.parse
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_startup.observe.transport import BoundSocket, bound, new_session

if TYPE_CHECKING:
    from requests import Response, Session

MAX_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Answer:
    """What came back. ``status`` 0: no HTTP answer. ``seconds`` is how long the request took.

    ``error`` is None only if the whole body arrived; a body that was cut off keeps its status, its first bytes and the
    error. ``kind``: refused, closed (reset, or closed before the status line), timeout, cut, too-large, not-http,
    cancelled, other; None without an error.
    """

    status: int
    body: bytes = b""
    error: str | None = None
    kind: str | None = None
    seconds: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """HTTP 200 and complete."""
        return self.status == 200 and self.error is None

    @property
    def text(self) -> str:
        """The body; bytes that are no UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The parsed body; raises ValueError, with a short text, when it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as e:
            raise ValueError(f"not JSON: {excerpt(self.text)}") from e

    def reason(self) -> str:
        """Why this is not a good answer, in one line; empty for a complete 200."""
        if self.ok:
            return ""
        if self.status == 0:
            return self.error or "no answer"
        return " ".join(p for p in (f"HTTP {self.status}", self.error or "", excerpt(self.text)) if p)


def excerpt(text: str, limit: int = 120) -> str:
    """``text`` on one line, shortened."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def is_own_address(host: str) -> bool:
    """Is every address of ``host`` loopback, or an address of this machine? False also for a name nobody knows."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(_is_local(address) for address in found)


def _is_local(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.is_loopback:
        return True
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))  # the kernel lets only addresses of this machine through
    except OSError:
        return False
    return True


class Http:
    """Requests to one server. Thread-safe. ``cancel()`` ends all requests in flight, at once and for good.

    ``base_url`` must name loopback, an address of this machine, or a host in ``allowed`` (ValueError otherwise). Each
    request has a connection of its own: a server that closes an idle one can't make a request fail. ``api_key`` is sent
    as bearer token, for engines that ask for one.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float = 30.0,
        max_bytes: int = MAX_BYTES,
        allowed: Collection[str] = (),
        api_key: str | None = None,
    ) -> None:
        parts = urllib.parse.urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"expected http://HOST:PORT, got {base_url!r}")
        if parts.hostname not in allowed and not is_own_address(parts.hostname):
            raise ValueError(
                f"{parts.hostname} is not an address of this machine; requests go only to the engine's own"
            )
        self.base_url = base_url.rstrip("/")
        self.host = parts.hostname
        self.port = parts.port or 80
        self.timeout = timeout
        self.max_bytes = max_bytes
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._cancelled = threading.Event()
        self._sockets: weakref.WeakSet[BoundSocket] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._session: Session | None = None

    def get(self, path: str, timeout: float | None = None) -> Answer:
        """GET ``path``. ``timeout``: seconds for the whole answer; None: that of the client."""
        return self._request("GET", path, None, timeout)

    def post(
        self,
        path: str,
        body: Mapping[str, object],
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """POST ``body`` as JSON. A streamed answer (SSE) is read to its end, within the same limits."""
        return self._request("POST", path, json.dumps(body).encode(), timeout, headers or {})

    def listening(self) -> bool:
        """Does anything accept connections there? Costs next to nothing when nothing does."""
        try:
            with socket.create_connection((self.host, self.port), timeout=1.0):
                return True
        except OSError:
            return False

    def cancel(self) -> None:
        """End every request in flight, from any thread; further ones are answered ``cancelled``."""
        self._cancelled.set()
        with self._lock:
            open_sockets = list(self._sockets)
        for sock in open_sockets:
            sock.interrupt()

    @property
    def cancelled(self) -> bool:
        """Has ``cancel`` or ``close`` been called?"""
        return self._cancelled.is_set()

    def close(self) -> None:
        self.cancel()
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> Http:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(
        self,
        method: str,
        path: str,
        data: bytes | None,
        timeout: float | None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Answer:
        import requests
        import urllib3

        limit = self.timeout if timeout is None else timeout
        began = time.monotonic()
        if self._cancelled.is_set():
            return Answer(0, error="cancelled", kind="cancelled")
        with self._lock:
            session = self._session = self._session or new_session()
        bound(began + limit, self._adopt)
        status, got, headers = 0, bytearray(), {}
        content = {"Content-Type": "application/json"} if data is not None else {}
        problem: str | None = None
        kind: str | None = None
        try:
            with session.request(
                method,
                self.base_url + path,
                data=data,
                headers={**self._headers, **content, **more},
                timeout=limit,
                stream=True,
                allow_redirects=False,
            ) as response:
                status, headers = response.status_code, dict(response.headers)
                problem, kind = self._read(response, got)
        except (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            http.client.HTTPException,
            OSError,
            ValueError,
        ) as e:
            late = time.monotonic() >= began + limit
            problem, kind = _explain(e, status, len(got), limit, late)
            if self._cancelled.is_set():
                problem, kind = "cancelled", "cancelled"
        return Answer(status, bytes(got), problem, kind, time.monotonic() - began, headers)

    def _adopt(self, sock: BoundSocket) -> None:
        """A request of ours has opened a connection: ``cancel`` ends it, also one that came before."""
        with self._lock:
            self._sockets.add(sock)
        if self._cancelled.is_set():
            sock.interrupt()

    def _read(self, response: Response, got: bytearray) -> tuple[str | None, str | None]:
        """The body, as it comes, into ``got`` (of one that is too large or cut off, its beginning); error and kind."""
        response.raw.enforce_content_length = False  # we count ourselves: an error would take what came with it
        for chunk in response.iter_content(65536):
            got += chunk
            if len(got) > self.max_bytes:
                del got[self.max_bytes :]
                return f"answer larger than {self.max_bytes} bytes", "too-large"
        promised = response.headers.get("Content-Length", "")
        if promised.isdigit() and len(got) < int(promised):
            return f"answer cut off after {len(got)} bytes", "cut"
        return None, None


def _explain(error: BaseException, status: int, received: int, limit: float, late: bool) -> tuple[str, str]:
    """A text and a kind for what went wrong, from the innermost cause."""
    chain = _causes(error)
    if late or any(isinstance(e, TimeoutError) for e in chain):
        return f"no complete answer within {limit:g} s", "timeout"
    if status:
        return f"answer cut off after {received} bytes", "cut"
    if any(isinstance(e, ConnectionRefusedError) for e in chain):
        return "connection refused", "refused"
    if any(isinstance(e, (ConnectionError, http.client.RemoteDisconnected)) for e in chain):
        return "connection closed without an answer", "closed"
    if any(isinstance(e, (http.client.HTTPException, ValueError)) for e in chain):
        return f"not an HTTP answer: {excerpt(str(chain[-1]))}", "not-http"
    return excerpt(f"{type(chain[-1]).__name__}: {chain[-1]}"), "other"


def _causes(error: BaseException) -> list[BaseException]:
    """``error`` and everything that it wraps, outermost first."""
    found: list[BaseException] = []
    todo: list[BaseException] = [error]
    while todo:
        e = todo.pop()
        if e in found:
            continue
        found.append(e)
        todo += [
            x for x in (e.__cause__, e.__context__, *e.args, getattr(e, "reason", None)) if isinstance(x, BaseException)
        ]
    return found
