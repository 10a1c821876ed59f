"""docker-py without its leaks (7.2 and before): sockets that it leaves open when something goes wrong half-way."""

from __future__ import annotations

import socket
from typing import Any

from docker import APIClient
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool


class Client(APIClient):
    """Of a log it asks after opening it whether it is a terminal's: the container may be gone by then."""

    def _get_result(self, container: Any, stream: Any, res: Any) -> Any:
        docker_py: Any = super()
        try:
            return docker_py._get_result(container, stream, res)
        except BaseException:
            res.close()
            raise


class _Connection(UnixHTTPConnection):
    """Its own leaves the socket open when nobody answers."""

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class _Pool(UnixHTTPConnectionPool):
    def _new_conn(self) -> Any:
        timeout: Any = self.timeout
        return _Connection(self.base_url, self.socket_path, timeout)


class ClosingAdapter(UnixHTTPAdapter):
    """Mounted instead of docker-py's own for ``http+docker://``. ``timeout``: seconds for one read of the socket."""

    def __init__(self, path: str, timeout: int) -> None:
        super().__init__(f"http+unix://{path}", timeout)
        self._closed = False

    def close(self) -> None:
        """Also for whoever still holds a session: a pool made after this would never be closed."""
        self._closed = True
        super().close()

    def get_connection(self, url: Any, proxies: Any = None) -> Any:  # noqa: ARG002 - requests names it
        with self.pools.lock:
            if self._closed:
                raise ConnectionError("the connections to the container engine are closed")
            pool = self.pools.get(url)
            if pool is None:
                pool = self.pools[url] = _Pool(url, self.socket_path, self.timeout, maxsize=self.max_pool_size)
        return pool
