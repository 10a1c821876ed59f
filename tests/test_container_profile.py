"""What a container profile becomes: command line, port, checkpoint, caches; whose a labelled container is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_startup import planning
from pytest_startup.engines.vllm import VllmDialect
from pytest_startup.launch.container import labels
from pytest_startup.launch.identity import Identity
from pytest_startup.profile.load import load
from pytest_startup.profile.problems import ProfileError

TEXT = """\
schema: 1
name: p
engine: {{kind: vllm, model: /models/m, args: [--max-model-len, "8"]}}
launch:
  container:
    image: sha256:{id}
    command: [vllm, serve]
    volumes: {{./models: /models:ro}}
{container}
  port: {port}
caches: {{{caches}}}
restarts: []
"""


def profile(folder: Path, container: str = "", port: str = "auto", caches: str = ""):
    path = folder / "p.yaml"
    lines = "\n".join(f"    {line}" for line in container.splitlines())
    path.write_text(TEXT.format(id="a" * 64, container=lines, port=port, caches=caches))
    return load(path, {})


@pytest.mark.parametrize(
    ("container", "port", "argv"),
    [
        ("network: host", "9000", ["vllm", "serve", "/models/m", "--host", "127.0.0.1", "--port", "9000"]),
        ("", "9000", ["vllm", "serve", "/models/m", "--host", ".".join("0000"), "--port", "9000"]),
        ("", "auto", ["vllm", "serve", "/models/m", "--host", ".".join("0000"), "--port", "8000"]),
        (
            "network: host\nexec_command: [nice, vllm, serve]",
            "9000",
            ["nice", "vllm", "serve", "/models/m", "--host", "127.0.0.1", "--port", "9000"],
        ),
    ],
)
def test_the_command_line_has_the_container_s_own_address(tmp_path, container, port, argv):
    made = profile(tmp_path, container, port)
    with planning.port_of(made, "run") as chosen:
        assert list(planning.command_line(made, None, VllmDialect(), chosen)) == [*argv, "--max-model-len", "8"]


def test_the_same_container_keeps_its_port(tmp_path):
    made = profile(tmp_path, "network: host")
    with planning.port_of(made, "run", 12345) as port:
        assert port == 12345


def test_the_checkpoint_is_what_is_mounted(tmp_path):
    made = profile(tmp_path)
    assert planning.checkpoint_of(made) == (tmp_path / "models" / "m",)


def test_a_cache_by_its_path_in_the_container(tmp_path):
    (cache,) = profile(tmp_path, caches="c: {container: /root/.cache/vllm, kind: compile}").caches
    assert (cache.name, cache.container, cache.path, cache.kind) == (
        "c",
        "/root/.cache/vllm",
        Path("/root/.cache/vllm"),
        "compile",
    )


@pytest.mark.parametrize(
    ("caches", "text"),
    [
        ("c: {kind: compile}", "caches.c: expected exactly one of path (on the host) and container (a path in it)"),
        (
            "c: {path: x, container: /x}",
            "caches.c.container: expected exactly one of path (on the host) and container (a path in it)",
        ),
        ("c: {container: x}", 'caches.c.container: expected an absolute path in the container; found the text "x"'),
    ],
)
def test_what_a_cache_may_be(tmp_path, caches, text):
    with pytest.raises(ProfileError) as error:
        profile(tmp_path, caches=caches)
    assert [line.partition(": ")[2] for line in error.value.lines()] == [text]


def test_a_cache_in_a_container_needs_one(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        "schema: 1\nname: p\nengine: {kind: vllm, model: m}\nlaunch: {process: {command: [vllm]}}\n"
        "caches: {c: {container: /x}}\nrestarts: []\n"
    )
    with pytest.raises(ProfileError) as error:
        load(path, {})
    assert error.value.lines() == [
        f"{path}:5: caches.c.container: there is no launch.container; expected path, the folder on the host"
    ]


def test_a_run_is_dead_only_for_certain(monkeypatch):
    mine = labels.labels("run", "p", "reference")
    assert labels.is_ours(mine)
    assert not labels.is_ours({"other": "label"})
    assert not labels.run_is_dead(mine)  # this very process lives
    dead = {**mine, labels.OWNER: f"{os.getpid()}:1"}  # the same pid, another process
    assert labels.run_is_dead(dead)
    for key in (labels.USER, labels.HOST, labels.NAMESPACE):
        assert not labels.run_is_dead({**dead, key: "another"})
    assert not labels.run_is_dead({**dead, labels.OWNER: "?"})
    assert not labels.run_is_dead({})
    assert not labels.run_is_dead(None)
    assert labels.run_is_dead({**mine, labels.BOOT: "before the last boot"})
    monkeypatch.setattr(labels, "alive", lambda identity: identity == Identity(7, 9))
    assert not labels.run_is_dead({**mine, labels.OWNER: "7:9"})


def test_how_a_container_is_told():
    listed = {"Id": "c" * 64, "Names": ["/x"], "Image": "i", "Status": "Up 3 minutes"}
    assert labels.told(listed) == "container cccccccccccc (x, image i, Up 3 minutes)"
    seen = {
        "Id": "c" * 64,
        "Name": "/x",
        "Config": {"Image": "i"},
        "Created": "2026-11-29T18:20:00.1Z",
        "State": {"Status": "running", "StartedAt": "2026-11-29T18:21:00.1Z"},
    }
    assert labels.told(seen) == "container cccccccccccc (x, image i, running since 2026-11-29T18:21:00Z)"
    seen["State"] = {"Status": "created", "StartedAt": "0001-01-01T00:00:00Z"}
    assert labels.told(seen) == "container cccccccccccc (x, image i, created, created 2026-11-29T18:20:00Z)"
