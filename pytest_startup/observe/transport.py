"""The connections below ``http``: one for each request, straight to the server, and all its reads end at a deadline."""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from requests import Session


class _Current(threading.local):
    """The request that this thread makes: its deadline, and who is told of its connection."""

    deadline: float = 0.0
    opened: Callable[[BoundSocket], None] | None = None


_current = _Current()


def bound(deadline: float, opened: Callable[[BoundSocket], None]) -> None:
    """The next request of this thread ends at ``deadline`` (``time.monotonic()``); ``opened`` gets its connection."""
    _current.deadline = deadline
    _current.opened = opened


class BoundSocket(socket.socket):
    """A socket whose reads, all together, end at the deadline of the request (a read timeout alone starts anew with
    every byte)."""

    @classmethod
    def adopt(cls, sock: socket.socket) -> BoundSocket:
        """``sock`` in another form, for the request of this thread."""
        timeout = sock.gettimeout()
        adopted = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        adopted.settimeout(timeout)
        if _current.opened is not None:
            _current.opened(adopted)
        return adopted

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        left = _current.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("deadline of the request")
        self.settimeout(left)
        return super().recv_into(buffer, nbytes, flags)

    def interrupt(self) -> None:
        """End a read that waits, in whatever thread."""
        try:
            self.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already closed


@functools.cache
def _adapter() -> type[Any]:
    """The transport adapter class, made on first use: ``requests`` is imported only then."""
    import requests.adapters
    import urllib3

    class Connection(urllib3.connection.HTTPConnection):
        def request(self, *args: Any, **kwargs: Any) -> None:
            self.close()  # never a second request on one connection, whatever the server promised
            super().request(*args, **kwargs)

        def connect(self) -> None:
            super().connect()
            if self.sock is not None:
                self.sock = BoundSocket.adopt(self.sock)

    class Pool(urllib3.HTTPConnectionPool):
        ConnectionCls = Connection

    class Adapter(requests.adapters.HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, **kwargs)
            self.poolmanager.pool_classes_by_scheme = {"http": Pool}

    return Adapter


def new_session() -> Session:
    """A session whose requests are each bounded by what ``bound`` said last in their thread."""
    import requests

    session = requests.Session()
    session.trust_env = False  # no proxy, no .netrc: the request must reach the engine itself
    session.headers.update({"Connection": "close", "Accept-Encoding": "identity", "Cache-Control": "no-cache"})
    session.adapters.clear()
    session.mount("http://", _adapter()(max_retries=0))
    return session
