"""Where the container engine is: profile, environment, contexts; what is refused, and what is said."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from helpers_docker import docker_context

from pytest_startup.launch.container import address as docker_address
from pytest_startup.launch.container.address import Address, AddressError, find
from pytest_startup.launch.container.client import ClosingAdapter
from pytest_startup.launch.container.daemon import Daemon, DaemonLost, DaemonRefused, NotThere
from pytest_startup.profile.model import ContainerLaunch

IMAGE = "sha256:" + "a" * 64


def test_the_profile_comes_first(tmp_path):
    environ = {"DOCKER_HOST": "unix:///env.sock", "DOCKER_CONFIG": str(tmp_path)}
    docker_context(tmp_path, "mine", "unix:///mine.sock")
    assert find(ContainerLaunch(IMAGE, docker_host="/run/x.sock"), environ) == Address(
        "unix:///run/x.sock", "launch.container.docker_host"
    )
    assert find(ContainerLaunch(IMAGE, context="mine"), environ).url == "unix:///mine.sock"
    assert find(ContainerLaunch(IMAGE), environ) == Address("unix:///env.sock", "DOCKER_HOST")


def test_contexts(tmp_path):
    environ = {"DOCKER_CONFIG": str(tmp_path)}
    plain = ContainerLaunch(IMAGE)
    assert find(plain, environ) == Address(docker_address.DEFAULT, "default")
    docker_context(tmp_path, "rootless", "unix:///run/user/1000/docker.sock")
    docker_context(tmp_path, "tls", "tcp://127.0.0.1:2376", tls={})
    (tmp_path / "config.json").write_text('{"currentContext": "rootless"}')
    assert find(plain, environ).url == "unix:///run/user/1000/docker.sock"
    assert find(plain, {**environ, "DOCKER_CONTEXT": "default"}).url == docker_address.DEFAULT
    secured = find(plain, {**environ, "DOCKER_CONTEXT": "tls"})
    assert secured.tls is not None
    assert secured.tls.name == "docker"
    with pytest.raises(AddressError, match=r"DOCKER_CONTEXT: no Docker context 'nine' \(known: rootless, tls\)"):
        find(plain, {**environ, "DOCKER_CONTEXT": "nine"})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(AddressError, match=r"config\.json can't be read"):
        find(plain, environ)


def test_tls_of_the_environment(tmp_path):
    (tmp_path / "ca.pem").touch()
    environ = {"DOCKER_HOST": "tcp://localhost:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)}
    assert find(ContainerLaunch(IMAGE), environ).tls == tmp_path
    assert find(ContainerLaunch(IMAGE), {"DOCKER_HOST": "tcp://127.0.0.1:2375"}).tls is None


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ssh://me@host", "ssh://me@host is not supported, because calls through it can hang without end; forward"),
        ("tcp://10.1.2.3:2375", "the engine at tcp://10.1.2.3:2375 is on another host, where neither ports nor bind"),
        ("tcp://docker:2375", "the engine at tcp://docker:2375 is on another host"),
        ("npipe:////./pipe/docker", "npipe:// is not supported; expected unix:// or tcp://"),
        ("docker.sock", "'docker.sock' is no address; expected unix:///path/to.sock or tcp://127.0.0.1:2376"),
    ],
)
def test_what_is_refused(url, text):
    with pytest.raises(AddressError) as error:
        find(ContainerLaunch(IMAGE, docker_host=url), {})
    assert str(error.value).startswith(f"launch.container.docker_host: {text}")


def test_how_a_user_would_call_it():
    assert Address(docker_address.DEFAULT, "default").command() == "docker"
    assert Address("unix:///x.sock", "DOCKER_HOST").command() == "docker -H unix:///x.sock"


class Socket:
    """A Unix socket that answers every request in the same way: ``silent`` or with a status and JSON."""

    def __init__(self, path: Path, status: int = 0, body: bytes = b"{}") -> None:
        self.address = Address(f"unix://{path}", "test")
        self._status, self._body = status, body
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(16)
        self._open: list[socket.socket] = []
        self._answering: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            self._open.append(peer)
            if self._status:
                self._answering.append(threading.Thread(target=self._answer, args=(peer,), daemon=True))
                self._answering[-1].start()

    def _answer(self, peer: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):
            self._answer_all(peer)

    def _answer_all(self, peer: socket.socket) -> None:
        while data := peer.recv(65536):
            status = 200 if b"/_ping" in data.split(b"\r\n")[0] else self._status
            body = b"OK" if status == 200 else self._body
            lines = ["API-Version: 1.41", "Content-Type: application/json", f"Content-Length: {len(body)}"]
            peer.sendall("\r\n".join([f"HTTP/1.1 {status} X", *lines, "", ""]).encode() + body)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        for peer in self._open:
            with contextlib.suppress(OSError):  # the other side has gone first
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._answering:
            thread.join()
        for peer in self._open:
            peer.close()


def test_a_daemon_that_never_answers(tmp_path, monkeypatch):
    """The limit is ours: docker-py itself would wait for a minute here."""
    monkeypatch.setattr("pytest_startup.launch.container.daemon.ASK", 60.0)
    server = Socket(tmp_path / "s")
    daemon = Daemon(server.address)
    begin = time.monotonic()
    with pytest.raises(DaemonLost, match=r"did not answer \(inspect\) within 0.5 s"):
        daemon.inspect("x", 0.5)
    assert time.monotonic() - begin < 30
    server.close()
    daemon.close()


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [(404, NotThere, "No such container: x"), (500, DaemonRefused, "broken"), (409, DaemonRefused, "broken")],
)
def test_what_a_daemon_says(tmp_path, status, kind, text):
    server = Socket(tmp_path / "s", status, json.dumps({"message": text}).encode())
    daemon = Daemon(server.address)
    with pytest.raises(kind, match=text):
        daemon.inspect("x")
    with pytest.raises(kind, match=text):
        daemon.archive("x", "/y")
    daemon.close()
    server.close()


def test_no_daemon(tmp_path, monkeypatch):
    with pytest.raises(DaemonLost, match="does not run: No such file or directory"):
        Daemon(Address(f"unix://{tmp_path}/none", "test")).greet()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "dead"))
    dead.close()
    with pytest.raises(DaemonLost, match="does not run: Connection refused"):
        Daemon(Address(f"unix://{tmp_path}/dead", "test")).greet()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "docker.sock").touch()
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman" / "podman.sock").touch()
    with pytest.raises(DaemonLost) as error:
        Daemon(Address(f"unix://{tmp_path}/none", "test")).greet()
    assert f"; found unix://{tmp_path}/docker.sock, unix://{tmp_path}/podman/podman.sock" in str(error.value).replace(
        "unix:///var/run/docker.sock, ", ""
    )
    assert "name it in DOCKER_HOST or launch.container.docker_host" in str(error.value)


class Logs(Socket):
    """It opens every log, and knows no container any more when asked about it; ``gone``: a log was closed again."""

    def __init__(self, path: Path) -> None:
        self.gone = threading.Event()
        super().__init__(path, 404, b'{"message": "No such container: x"}')

    def _answer_all(self, peer: socket.socket) -> None:
        asked = peer.recv(65536, socket.MSG_PEEK)
        if b"/logs" not in asked.split(b"\r\n")[0]:
            super()._answer_all(peer)
            return
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        if not peer.recv(1):
            self.gone.set()


def test_a_log_of_a_container_that_goes_meanwhile_is_closed(tmp_path):
    server = Logs(tmp_path / "s")
    daemon = Daemon(server.address)
    with pytest.raises(NotThere, match="No such container: x") as error:
        daemon.logs("x", None, follow=True)
    # The error is still held, and with it all that its traceback holds: the log is closed because we close it.
    assert server.gone.wait(10), error
    daemon.close()
    server.close()


def test_a_closed_daemon_is_not_used(tmp_path):
    server = Socket(tmp_path / "s", 404)
    daemon = Daemon(server.address)
    daemon.greet()
    daemon.close()
    with pytest.raises(DaemonLost, match="is not used any more"):
        daemon.greet()
    server.close()


def test_who_may_not_use_it(tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pytest_startup.launch.container.daemon._probe", refused)
    with pytest.raises(DaemonLost) as error:
        Daemon(Address(f"unix://{tmp_path}/s", "test")).greet()
    assert f"may not be used by uid {os.getuid()}: join the group of its socket (usermod -aG docker USER" in str(
        error.value
    )


def test_a_closed_adapter_makes_no_connection_that_nobody_would_close(tmp_path):
    adapter = ClosingAdapter(str(tmp_path / "docker.sock"), 5)
    assert adapter.get_connection("http+docker://localhost") is adapter.get_connection("http+docker://localhost")
    adapter.close()
    with pytest.raises(ConnectionError, match="are closed"):
        adapter.get_connection("http+docker://localhost")
