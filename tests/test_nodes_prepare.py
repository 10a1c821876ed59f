"""What is done on nodes around a start: caches looked at and wiped, page cache dropped, overlay files sent."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from helpers_launch import until
from helpers_nodes import needs_namespaces, network, pair

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.nodes import boot as nodes_boot
from pytest_startup.launch.nodes.caches import from_json, to_json
from pytest_startup.launch.nodes.launcher import NodesLauncher, send_files
from pytest_startup.observe.caches import RACY_NS, facts_of, snapshot
from pytest_startup.profile.model import ContainerFile, ContainerLaunch
from pytest_startup.profile.nodes import Reach

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture(scope="module")
def net():
    with network(f"p{os.getpid()}-") as name:
        yield name


@pytest.fixture
def launcher():
    made = NodesLauncher()
    yield made
    made.close()


def filled(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "artifact").write_bytes(b"x" * 5000)
    return folder


@needs_namespaces
def test_caches_are_seen_wiped_and_dropped_on_every_node(net, launcher, tmp_path):
    keys = {}
    for node in ("head", "worker"):
        cache, model = filled(tmp_path / node / "cache"), filled(tmp_path / node / "model")
        keys[f"{node}_keys"] = (
            f"    caches: {{compile-cache: {{path: {cache}, kind: compile}}}}\n    checkpoint: [{model}]"
        )
    profile = pair(tmp_path, net, **keys)
    newest = max(file.stat().st_ctime_ns for file in tmp_path.glob("*/*/artifact"))
    until(lambda: time.time_ns() > newest + 2 * RACY_NS, "files old enough to be read only once")
    before = launcher.snapshots(profile, {}, True)
    assert sorted(before) == ["head/compile-cache", "worker/compile-cache"]
    assert {shot.tree.node for shot in before.values()} == {"head", "worker"}
    assert [f.path for f in before["worker/compile-cache"].tree.files] == ["artifact"]
    notes = launcher.prepare(profile, ("worker",), True, ("compile-cache",))
    assert len(notes) == 2
    assert notes[0].startswith("worker: cache compile-cache wiped: 1 files")
    assert notes[1].startswith("worker: page cache: 1 files")
    after = launcher.snapshots(profile, before, True)
    assert after["head/compile-cache"].tree == before["head/compile-cache"].tree
    assert after["head/compile-cache"].hashed == 0  # what was seen before was not read again
    assert not after["worker/compile-cache"].tree.exists
    assert (tmp_path / "worker" / "model" / "artifact").exists()


@needs_namespaces
def test_what_may_not_be_wiped_on_a_node_is_refused(net, launcher, tmp_path):
    cache = filled(tmp_path / "cache")
    keys = f"    caches: {{c: {{path: {cache}}}}}\n    checkpoint: [{cache}/artifact]"
    with pytest.raises(LaunchError, match=r"node worker: wipe: nothing is wiped: cache c: .* is not a cache"):
        launcher.prepare(pair(tmp_path, net, worker_keys=keys), (), False, ("c",))
    assert (cache / "artifact").exists()


def test_a_snapshot_survives_the_way(tmp_path):
    folder = filled(tmp_path / "cache")
    (folder / "autotune.json").write_text('{"a": 1}')
    (folder / "link").symlink_to("/nowhere")
    shot = snapshot("c", folder, kind="autotune", node="worker")
    back = from_json(to_json(shot))
    assert back == shot
    assert facts_of({"c": back}) == facts_of({"c": shot})


@needs_namespaces
def test_overlay_files_are_sent_and_compared(net, launcher, tmp_path):
    profile = pair(tmp_path, net)
    patch = tmp_path / "loader.py"
    patch.write_text("patched = True\n")
    digest = hashlib.sha256(patch.read_bytes()).hexdigest()

    def with_file(sha256: str | None):
        container = ContainerLaunch("sha256:1", files=(ContainerFile(patch, "/in/loader.py", sha256),))
        return replace(profile, launch=replace(profile.launch, container=container))

    access = launcher.access(profile)["worker"]
    assert send_files(with_file(digest), access) == {}  # this host's own files are mounted where they are
    access.node = replace(access.node, reach=Reach("ssh", "elsewhere"))  # files go the way of another host
    sent = send_files(with_file(digest), access)
    there = Path(sent["/in/loader.py"])
    assert there != patch
    assert there.read_text() == "patched = True\n"
    assert there.stat().st_mode & 0o777 == 0o644
    there.write_text("changed = True\n")
    assert send_files(with_file(digest), access) == sent  # what lies there is not trusted
    assert there.read_text() == "patched = True\n"
    with pytest.raises(LaunchError, match=f"overlay file {patch}: sha256 {digest}, expected {'0' * 64}"):
        send_files(with_file("0" * 64), access)


def test_what_travels_to_a_node_needs_only_pythons_own_library():
    assert set(nodes_boot.MODULES) >= {"pytest_startup.launch.nodes.agent", "pytest_startup.launch.process.keeper"}
    data = nodes_boot.payload()
    assert int(data[:10]) == len(data) - 10
    assert len(data) < 150_000
    assert '"' in nodes_boot.command("python3")[-1]
    assert "'" not in nodes_boot.command("python3")[-1]  # it is quoted with these on its way through ssh
