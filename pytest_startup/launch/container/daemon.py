"""One container engine through docker-py: every call bounded in time by us, every failure one of three."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_startup.launch.container import address as docker_address
from pytest_startup.launch.container import podman
from pytest_startup.launch.container.address import Address

if TYPE_CHECKING:
    from docker import APIClient

_T = TypeVar("_T")
#: Seconds for calls that only ask, and for those that work (create, start, remove).
ASK = 5.0
WORK = 60.0
#: Seconds for one read of a socket where our own limit is another one; whoever is left behind in it ends some time.
_LONG = 3600.0
_CHUNK = 1 << 18
#: For a daemon that does not say which version it speaks, and a client that only asks for that.
_ANY_VERSION = "1.24"
#: The header by which Podman tells itself from Docker.
_PODMAN = "Libpod-API-Version"


class DaemonLost(Exception):
    """The daemon did not answer, or not in time. The message says where and what happened."""


class DaemonSlow(DaemonLost):
    """The daemon did not answer in time: it may be busy as well as gone."""


class NotThere(Exception):
    """The daemon answers that there is no such container, image, volume or path."""


class DaemonRefused(Exception):
    """The daemon answers that it will not. The message is its own."""


class Daemon:
    """A daemon. Methods raise DaemonLost, NotThere and DaemonRefused, nothing else of docker-py or below it.

    docker-py's own time limits hold for one read of a socket and not at all for streams; so each call runs in a thread
    that is left behind when its time is over.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._clients: dict[float, APIClient] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._greeting: Mapping[str, str] | None = None

    def greet(self) -> None:
        """Is somebody there? Costs the daemon nothing, unlike ``/version``, for which Podman needs seconds."""
        self._call("ping", ASK, _ping)

    def is_podman(self) -> bool:
        """Podman, which answers in Docker's words but not always with Docker's meaning (see ``container.podman``)."""
        return _PODMAN in self._call("ping", ASK, _ping)

    def info(self) -> Mapping[str, Any]:
        return self._call("info", ASK, lambda c: dict(c.info()))

    def image(self, name: str) -> Mapping[str, Any]:
        return self._call("image inspect", ASK, lambda c: dict(_plain(c).inspect_image(name)))

    def inspect(self, container: str, limit: float = ASK) -> Mapping[str, Any]:
        return self._call("inspect", limit, lambda c: podman.as_docker(c.inspect_container(container)))

    def containers(self, labels: Sequence[str] = ()) -> list[Mapping[str, Any]]:
        """All containers, created and stopped ones too, that have all of these labels (``name`` or ``name=value``)."""
        filters = {"label": list(labels)} if labels else {}
        return self._call("list", ASK, lambda c: list(c.containers(all=True, filters=filters)))

    def create(self, body: Mapping[str, Any], name: str) -> str:
        """Create a container from the API's own body; its id. Never pulls."""
        return self._call("create", WORK, lambda c: str(_plain(c).create_container_from_config(dict(body), name)["Id"]))

    def start(self, container: str) -> None:
        self._call("start", WORK, lambda c: c.start(container))

    def stop(self, container: str, timeout: float, margin: float = 30.0) -> None:
        """The stop signal, and KILL after ``timeout`` seconds (whole ones: the API knows no others)."""
        whole = max(0, round(timeout))
        self._call("stop", whole + margin, lambda c: c.stop(container, timeout=whole), long=True)

    def kill(self, container: str) -> None:
        """KILL; of a container that does not run it is no error."""
        with contextlib.suppress(DaemonRefused):
            self._call("kill", WORK, lambda c: c.kill(container))

    def remove(self, container: str) -> None:
        """KILL and remove, anonymous volumes with it; named ones stay."""
        self._call("remove", WORK, lambda c: c.remove_container(container, force=True, v=True))

    def logs(self, container: str, since: int | None, follow: bool) -> Stream:
        """Records of the log, each with its time in front (see ``container.log``). The iterator has ``close()``.

        It ends silently when the container ends and when the daemon dies: look which.
        """
        stream = self._call(
            "logs",
            ASK,
            lambda c: c.logs(container, stream=True, follow=follow, timestamps=True, since=since),
            long=True,
        )
        return Stream(stream, self)

    def events(self, container: str) -> Stream:
        """What happens to a container from now on, for as long as it takes. Ends when the daemon goes."""
        stream = self._call("events", ASK, lambda c: c.events(filters={"container": container}), long=True)
        return Stream(stream, self)

    def exec_create(self, container: str, argv: Sequence[str], **options: Any) -> str:
        return self._call("exec", ASK, lambda c: str(c.exec_create(container, list(argv), **options)["Id"]))

    def exec_start(self, exec_id: str) -> Stream:
        """Start it and give its output as it comes; the iterator has ``close()``."""
        return Stream(self._call("exec start", WORK, lambda c: c.exec_start(exec_id, stream=True)), self)

    def exec_inspect(self, exec_id: str) -> Mapping[str, Any]:
        return self._call("exec inspect", ASK, lambda c: dict(c.exec_inspect(exec_id)))

    def archive(self, container: str, path: str) -> Stream:
        """The tar stream of a file or folder in a container, also of one that is stopped."""

        def work(client: APIClient) -> Any:
            # not get_archive: it gives no way to close an archive of which only the beginning is wanted
            url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
            answer = client.get(url, params={"path": path}, stream=True, timeout=_LONG)
            if answer.status_code >= 400:
                with answer:
                    kind = NotThere if answer.status_code == 404 else DaemonRefused
                    raise kind(str(answer.json().get("message", answer.reason)))
            return answer

        answer = self._call("archive", ASK, work, long=True)
        return Stream(answer.iter_content(_CHUNK), self, answer)

    def volume(self, name: str) -> Mapping[str, Any]:
        return self._call("volume inspect", ASK, lambda c: dict(c.inspect_volume(name)))

    def remake_volume(self, name: str) -> None:
        """Remove a volume that nobody uses, and create it again, empty, with the same driver, options and labels."""

        def work(client: APIClient) -> None:
            seen = client.inspect_volume(name)
            client.remove_volume(name)
            client.create_volume(name, seen.get("Driver"), seen.get("Options") or {}, seen.get("Labels") or {})

        self._call("volume", WORK, work)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def where(self) -> str:
        return f"the container engine at {self.address}"

    def _call(self, what: str, limit: float, work: Callable[[APIClient], _T], long: bool = False) -> _T:
        """``long``: one read of the socket may take longer than ``limit`` (streams)."""
        outcome: list[_T] = []
        failure: list[BaseException] = []
        over = threading.Lock()  # taken by whoever is first: the answer, or the end of its time

        def run() -> None:
            try:
                answer = work(self._connected(ASK if limit <= ASK and not long else _LONG))
            except BaseException as error:
                failure.append(error)
                return
            if over.acquire(blocking=False):
                outcome.append(answer)
            elif hasattr(answer, "close"):
                answer.close()  # a stream for which nobody waits any more

        import pytest_startup.launch.container.client  # noqa: F401 - docker-py's import takes of nobody's time

        thread = threading.Thread(target=run, name=f"startup-docker-{what}", daemon=True)
        thread.start()
        thread.join(limit)
        if not over.acquire(blocking=False) and not failure:
            thread.join()  # it has its answer, and is about to hand it over
        if outcome:
            return outcome[0]
        if failure:
            raise self._told(what, failure[0]) from None
        raise DaemonSlow(f"{self.where()} did not answer ({what}) within {limit:g} s")

    def _connected(self, timeout: float) -> APIClient:
        """A client with this limit for one read, made on first use and shared by threads.

        A Unix socket is tried first: why nobody answers can't be told from docker-py's error.
        """
        _probe(self.address.socket, timeout)
        if self._greeting is None:  # not under the lock: a daemon that hangs must not hold up our end
            asking = self._client(_ANY_VERSION, ASK)
            try:
                self._greeting = _ping(asking)
            finally:
                asking.close()
        with self._lock:
            if self._closed:
                raise DaemonLost(f"{self.where()} is not used any more")
            if timeout not in self._clients:
                version = self._greeting.get("API-Version") or _ANY_VERSION
                self._clients[timeout] = self._client(version, timeout)
            return self._clients[timeout]

    def _client(self, version: str, timeout: float) -> APIClient:
        """A new client; nothing is asked of the daemon yet."""
        import docker

        from pytest_startup.launch.container.client import Client, ClosingAdapter

        tls: Any = False
        if self.address.tls is not None:
            folder = self.address.tls
            pair = (str(folder / "cert.pem"), str(folder / "key.pem"))
            tls = docker.tls.TLSConfig(
                client_cert=pair if os.path.exists(pair[0]) else None,
                ca_cert=str(folder / "ca.pem") if (folder / "ca.pem").exists() else None,
                verify=True,
            )
        client = Client(base_url=self.address.url, version=version, timeout=round(timeout), tls=tls)
        client.trust_env = False
        if self.address.socket is not None:
            client.mount("http+docker://", ClosingAdapter(self.address.socket, round(timeout)))
        return client

    def _told(self, what: str, error: BaseException) -> Exception:
        """What went wrong, in one of our three kinds."""
        import docker.errors

        if isinstance(error, (DaemonLost, NotThere, DaemonRefused)):
            return error
        if isinstance(error, docker.errors.NotFound):
            return NotThere(_explained(error))
        if isinstance(error, docker.errors.APIError):
            return DaemonRefused(_explained(error))
        if isinstance(error, PermissionError):
            return DaemonLost(
                f"{self.where()} may not be used by uid {os.getuid()}: join the group of its socket "
                "(usermod -aG docker USER, then log in again), or use a rootless engine"
            )
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            there = [a for a in docker_address.others(os.environ, os.getuid()) if a != self.address.url]
            hint = (
                f"; found {', '.join(there)}: name it in DOCKER_HOST or launch.container.docker_host" if there else ""
            )
            return DaemonLost(f"{self.where()} does not run: {error.strerror or 'connection refused'}{hint}")
        if isinstance(error, docker.errors.TLSParameterError):
            return DaemonLost(f"{self.where()}: {error}")
        return DaemonLost(f"{self.where()} does not answer ({what}): {_short(error)}")


class Stream:
    """An answer that comes in pieces; what goes wrong in it is DaemonLost."""

    def __init__(self, stream: Any, daemon: Daemon, answer: Any = None) -> None:
        self._stream = stream
        self._daemon = daemon
        self._answer = answer if answer is not None else getattr(stream, "_response", None)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return bytes(next(self._stream))
        except StopIteration:
            raise
        except Exception as error:
            raise self._daemon._told("stream", error) from None

    def close(self) -> None:
        """End it, also from another thread."""
        parts: tuple[Any, ...] = (self._stream, self._answer)
        for part in parts:
            with contextlib.suppress(Exception):  # whatever a dying connection says at its end
                part.close()


def _probe(path: str | None, limit: float) -> None:
    if path is not None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(limit)
            probe.connect(path)


def _ping(client: APIClient) -> Mapping[str, str]:
    """The headers of an answer that says who it is. Raises DaemonRefused."""
    with client.get(f"{client.base_url}/_ping", timeout=ASK) as answer:  # where docker-py sets none
        if answer.status_code >= 400:
            raise DaemonRefused(answer.text.strip() or str(answer.reason))
        return answer.headers


def _plain(client: APIClient) -> Any:
    """For the methods of which no types are known."""
    return client


def _explained(error: Any) -> str:
    return str(error.explanation or error).strip()


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
