"""A Docker context as the way to a node: taken for where it leads, refused with what to do where that is not enough."""

from __future__ import annotations

import hashlib
import json

import pytest
from helpers_nodes import pair

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.nodes.contexts import resolved
from pytest_startup.launch.nodes.launcher import NodesLauncher
from pytest_startup.profile.nodes import Node, NodeContainer, Reach


@pytest.fixture
def context(tmp_path, monkeypatch):
    """Write one as ``docker context create`` does."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def make(name: str, host: str) -> None:
        folder = tmp_path / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
        folder.mkdir(parents=True)
        endpoints = {"docker": {"Host": host, "SkipTLSVerify": False}}
        (folder / "meta.json").write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoints}))

    return make


def node(docker_host: str | None = None) -> Node:
    return Node("worker", "192.0.2.2", Reach("context", "gb10-b"), container=NodeContainer(docker_host=docker_host))


@pytest.mark.parametrize(
    ("host", "reach", "docker_host"),
    [
        ("ssh://gb10-b", Reach("ssh", "ssh://gb10-b"), None),
        ("ssh://me@gb10-b:2222", Reach("ssh", "ssh://me@gb10-b:2222"), None),
        ("ssh://gb10-b/run/user/1000/docker.sock", Reach("ssh", "ssh://gb10-b"), "unix:///run/user/1000/docker.sock"),
        ("unix:///run/other.sock", Reach("local"), "unix:///run/other.sock"),
    ],
)
def test_where_it_leads(context, host, reach, docker_host):
    context("gb10-b", host)
    made = resolved(node())
    assert (made.reach, made.container.docker_host) == (reach, docker_host)
    assert resolved(node("unix:///mine")).container.docker_host == "unix:///mine"  # the profile's own word counts


def test_a_daemon_alone_is_no_node(context):
    context("gb10-b", "tcp://192.0.2.2:2376")
    with pytest.raises(LaunchError, match=r"leads to tcp://192\.0\.2\.2:2376: only the daemon answers there.*ssh://"):
        resolved(node())


def test_a_context_that_is_not_there(context, tmp_path):
    with pytest.raises(
        LaunchError, match=f"there is no Docker context gb10-b; known in {tmp_path}/contexts/meta: none"
    ):
        resolved(node())
    context("gb10-a", "ssh://gb10-a")
    with pytest.raises(LaunchError, match=r"there is no Docker context gb10-b; did you mean gb10-a\?"):
        resolved(node())


def test_the_preflight_says_so_with_the_place(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (reason,) = NodesLauncher().preflight(pair(tmp_path, "x-", worker_reach="{context: gb10-b}"))
    assert reason.startswith("pair.yaml:")
    assert "there is no Docker context gb10-b" in reason


def test_other_nodes_are_left_as_they_are():
    local = Node("head", "192.0.2.1")
    assert resolved(local) is local
