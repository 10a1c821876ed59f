"""A daemon behind TLS, and contexts as the docker command writes them: what works, and what is said where not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading

import helpers_tls
import pytest
from helpers_docker import container_plan, container_profile
from helpers_launch import logged

from pytest_startup import init
from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.container import address as docker_address
from pytest_startup.launch.container import trouble
from pytest_startup.launch.container.address import Address
from pytest_startup.launch.container.launcher import ContainerLauncher

READY = "Application startup complete."


def reasons(profile, **environ: str) -> list[str]:
    launcher = ContainerLauncher(environ=environ)
    try:
        return list(launcher.preflight(profile))
    finally:
        launcher.close()


def test_a_start_over_tls(engine, tmp_path):
    """Launched, followed and stopped with proof, by the variables of the docker command."""
    environ = {"DOCKER_HOST": engine.secured, "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(engine.certificates)}
    launcher = ContainerLauncher(environ=environ)
    profile = container_profile(engine, tmp_path, docker_host=None)
    assert launcher.preflight(profile) == []
    running = launcher.start(container_plan(profile))
    logged(running, READY)
    assert all(one.released for one in running.stop())
    assert launcher.close() == []
    assert engine.labelled() == []


def test_contexts_that_the_docker_command_made(engine, tmp_path, monkeypatch, capsys):
    """Its own files, not those that we believe it to write."""
    made, config = engine.certificates, tmp_path / "config"
    endpoint = f"host={engine.secured},ca={made}/ca.pem,cert={made}/cert.pem,key={made}/key.pem"
    bad = helpers_tls.make(tmp_path / "bad")
    wrong = f"host={engine.secured},ca={bad}/ca.pem,cert={made}/cert.pem,key={made}/key.pem"
    unchecked = f"{wrong},skip-tls-verify=true"
    for name, text in {
        "tls": endpoint,
        "wrong-authority": wrong,
        "unchecked": unchecked,
        "far": "host=ssh://me@node7",
        "plain": f"host={engine.url}",
    }.items():
        environ = {**os.environ, "DOCKER_CONFIG": str(config)}
        subprocess.run(["docker", "context", "create", name, "--docker", text], env=environ, check=True)
    capsys.readouterr()
    profile = container_profile(engine, tmp_path, docker_host=None)

    def said(name: str) -> list[str]:
        return reasons(profile, DOCKER_CONTEXT=name, DOCKER_CONFIG=str(config))

    assert [said(name) for name in ("tls", "plain")] == [[], []]
    (text,) = said("unchecked")
    assert text.startswith("DOCKER_CONTEXT: the Docker context 'unchecked' skips the check of the daemon's certificate")
    assert f"docker context update unchecked --docker host={engine.secured},ca=…,cert=…,key=…" in text
    (text,) = said("far")
    assert text.startswith("context far, DOCKER_CONTEXT: ssh://me@node7 is not supported, because calls through it can")
    assert "ssh -NL /tmp/docker.sock:/var/run/docker.sock" in text
    (text,) = said("wrong-authority")
    assert f"{engine.secured} (context wrong-authority, DOCKER_CONTEXT) shows a certificate that is not acc" in text
    assert "ca.pem" in text
    (config / "config.json").write_text('{"currentContext": "tls"}')
    assert reasons(profile, DOCKER_CONFIG=str(config)) == []
    container = engine.docker("create", "--network", "none", engine.image, "vllm", "serve", "org/m")
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    assert init.main(["--from-container", container]) == 0
    assert f"read from the container engine at {engine.secured} (context tls, current " in capsys.readouterr().err


def test_what_is_said_of_tls_that_does_not_fit(engine, tmp_path):
    profile = container_profile(engine, tmp_path, docker_host=None)
    made = engine.certificates
    nobody = tmp_path / "nobody"
    nobody.mkdir()
    shutil.copy(made / "ca.pem", nobody)
    stranger = helpers_tls.make(tmp_path / "stranger")
    shutil.copy(made / "ca.pem", stranger)
    where = f"the container engine at {engine.secured} (DOCKER_HOST)"

    def said(folder: object = None, url: str = engine.secured) -> str:
        secured = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(folder)} if folder else {}
        (text,) = reasons(profile, DOCKER_HOST=url, **secured)
        return text

    assert said().startswith(f"{where} expects TLS: set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH (a folder of ca.pem,")
    for folder in (nobody, stranger):
        text = said(folder)
        assert text.startswith(f"{where} does not accept us ("), text
        assert text.endswith(f"expected cert.pem and key.pem of a client that it knows in {folder}")
    assert said(tmp_path) == (
        f"DOCKER_CERT_PATH: no certificates in {tmp_path}; expected a folder of ca.pem, cert.pem and key.pem"
    )
    for folder in (None, made):
        text = said(folder, "tcp://127.0.0.1:9")
        assert text == "the container engine at tcp://127.0.0.1:9 (DOCKER_HOST) does not run: Connection refused"
    with pytest.raises(LaunchError, match="expects TLS"):
        ContainerLauncher(environ={"DOCKER_HOST": engine.secured}).start(container_plan(profile))


def test_tls_where_none_is_spoken(tmp_path):
    """A plain server answers a handshake with a line of HTTP."""
    made = helpers_tls.make(tmp_path / "made")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert trouble.why_lost(Address(url, "test", made)) == (
            "does not speak TLS; leave DOCKER_TLS_VERIFY out, or give the port on which it does"
        )
        thread.join()
    assert trouble.why_lost(Address(docker_address.DEFAULT, "test")) is None
