"""Podman's API socket, where it answers otherwise than Docker's: by what Podman 4.3 really said."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_startup.dockerinspect import inspected
from pytest_startup.draft import from_run
from pytest_startup.draftyaml import render
from pytest_startup.launch.container import podman
from pytest_startup.launch.container.log import Position, Reading
from pytest_startup.profile.load import load_bytes

SAID = json.loads((Path(__file__).parent / "data" / "containers" / "podman-4.3-container.json").read_text())
#: What it says while it waits for a process that ignores TERM, and when that has been killed.
STOPPING = {"Status": "stopping", "Running": False, "ExitCode": 0, "OOMKilled": False}
KILLED = {"Status": "exited", "Running": False, "ExitCode": 137, "OOMKilled": False}


def test_one_that_is_being_stopped_still_runs():
    assert podman.as_docker({"Id": "x", "State": STOPPING}) == {"Id": "x", "State": {**STOPPING, "Running": True}}
    for state in (KILLED, {"Status": "running", "Running": True}):
        assert podman.as_docker({"State": state}) == {"State": state}


def test_pieces_of_lines_with_times_of_their_own():
    """Podman stamps every piece that was written, with whole seconds: a line over a second's end is still one line."""
    said = [
        b"2026-11-29T21:40:47Z 0 ready\n",
        b"2026-11-29T21:40:47Z 1",
        b"2026-11-29T21:40:47Z  ",
        b"2026-11-29T21:40:48Z two",
        b"2026-11-29T21:40:48Z \n",
        b"2026-11-29T21:40:49Z 2\n",
        b"2026-11-29T21:40:50Z 3\n",
    ]
    taken: list[bytes] = []
    assert Reading(Position(), lambda _, text: taken.append(text)).run(iter(said)) == 4
    assert taken == [b"0 ready\n", b"1 two\n", b"2\n", b"3\n"]


def test_a_profile_from_a_container_of_podman(tmp_path):
    """What the user asked for, and nothing of what Podman fills in: its profile loads, and names no foreign runtime."""
    image = {
        "Config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": None, "Entrypoint": None, "WorkingDir": ""}
    }
    draft = from_run(inspected(SAID, image), {}, tmp_path)
    profile = load_bytes(render(draft).encode(), tmp_path / "p.yaml", {})
    container = profile.launch.container
    assert container is not None
    assert profile.engine.env == {"A": "b"}
    assert container.volumes == {"/srv/models": "/srv/models:ro", "kept": "/cache"}
    assert [file.path for file in container.files] == ["/opt/p.py"]
    assert container.ulimits == {"nofile": "1024:4096", "nproc": "1048576"}
    assert container.devices == ("/dev/null:/dev/x:rwm",)
    assert (container.network, container.ipc, container.runtime, container.entrypoint) == ("host", None, None, None)
    assert (container.working_dir, container.memory, container.shm_size) == (None, "1g", "96m")
    assert container.engine_options == {}
    assert not [note for note in draft.notes if "not carried over" in note]
