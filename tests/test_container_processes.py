"""Where a container's processes and its out-of-memory kills are found: both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_startup.launch.container.processes import oom_files, oom_kills_in, peak_files, peak_in, procs_files

ID = "4f1c" * 16
V1 = f"""\
12:pids:/docker/{ID}
11:memory:/docker/{ID}
5:cpu,cpuacct:/docker/{ID}
1:name=systemd:/docker/{ID}
0::/docker/{ID}
"""
#: What the kernel writes after one kill: control groups v1, v2, v2 with group kills.
OOM_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"
EVENTS = "low 0\nhigh 0\nmax 57\noom 1\noom_kill 1\n"
EVENTS_GROUP = f"{EVENTS}oom_group_kill 0\n"


@pytest.mark.parametrize(
    ("rows", "there", "counted", "text"),
    [
        (V1, ["pids/docker/ID", "memory/docker/ID", "systemd/docker/ID", "unified/docker/ID"],
         "memory/docker/ID/memory.oom_control", OOM_CONTROL),
        (f"0::/docker/{ID}\n", ["docker/ID"], "docker/ID/memory.events", EVENTS),
        (f"0::/system.slice/docker-{ID}.scope\n", ["system.slice/docker-ID.scope"],
         "system.slice/docker-ID.scope/memory.events", EVENTS_GROUP),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope\n",
         ["user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope"],
         "user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope/memory.events", EVENTS_GROUP),
        (f"0::/machine.slice/libpod-{ID}.scope/container\n", ["machine.slice/libpod-ID.scope/container"],
         "machine.slice/libpod-ID.scope/container/memory.events", EVENTS_GROUP),
    ],
    ids=["v1", "v2 cgroupfs", "v2 systemd", "v2 rootless", "v2 podman"],
)  # fmt: skip
def test_control_groups(tmp_path: Path, rows: str, there: list[str], counted: str, text: str) -> None:
    """v1: a row whose tree is not mounted where it is looked for is left out, the memory controller's has the count."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(rows)
    root = tmp_path / "cgroup"
    folders = [root / folder.replace("ID", ID) for folder in there]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("7\n")
    found = procs_files(ID, 7, str(tmp_path), str(root))
    assert found == [f"{folder}/cgroup.procs" for folder in folders if folder.relative_to(root).parts[0] != "unified"]
    assert oom_kills_in(oom_files(found)) == 0
    (root / counted.replace("ID", ID)).write_text(text.replace("oom_kill 1", "oom_kill 0"))
    assert oom_kills_in(oom_files(found)) == 0
    (root / counted.replace("ID", ID)).write_text(text)
    assert oom_kills_in(oom_files(found)) == 1
    assert peak_in(peak_files(found)) is None
    peak = {"memory.oom_control": "memory.max_usage_in_bytes", "memory.events": "memory.peak"}[Path(counted).name]
    (root / counted.replace("ID", ID)).with_name(peak).write_text("3221225472\n")
    assert peak_in(peak_files(found)) == 3 << 30
    assert procs_files("0" * 64, 7, str(tmp_path), str(root)) == []
    assert procs_files(ID, 8, str(tmp_path), str(root)) == []
