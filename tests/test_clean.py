"""The registry of started things, and ``pytest-startup clean`` as a user meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_launch import gone, until

from pytest_startup import clean, cli
from pytest_startup.launch import identity, registry
from pytest_startup.launch.identity import Identity
from pytest_startup.record import Leftover

pytestmark = pytest.mark.usefixtures("isolated")

DEAD = Identity(os.getpid(), 1)


def entry(**changes) -> registry.Entry:
    base = {
        "run_id": "r1",
        "start": "reference",
        "kind": "process",
        "owner": DEAD,
        "started_at": "2026-11-29T15:00:00Z",
        "command": "vllm serve m",
        "boot": registry.boot_id(),
        "namespace": registry.pid_namespace(),
    }
    return registry.Entry(**{**base, **changes})


@pytest.fixture
def orphan():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_entries_are_read_back_as_written():
    folder = registry.state_folder()
    full = entry(
        keeper=Identity(7, 8), known=(Identity(9, 10),), port=8888, shm=("psm_1",), kept=True, labels={"container": "c"}
    )
    path = registry.write(folder, full)
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert list(registry.entries(folder)) == [full]
    registry.remove(folder, full)
    registry.remove(folder, full)
    assert list(folder.iterdir()) == []


def test_files_that_are_not_entries_are_left_alone(tmp_path):
    folder = registry.state_folder()
    registry.write(folder, entry())
    for name, text in (("a.json", "{"), ("b.json", "[]"), ("c.json", '{"schema": 99}'), ("d.json", '{"schema": 1}')):
        (folder / name).write_text(text)
    outside = tmp_path / "outside.json"
    registry.write(tmp_path, entry(run_id="planted")).rename(outside)
    (folder / "e.json").symlink_to(outside)
    assert [e.run_id for e in registry.entries(folder)] == ["r1"]
    assert len(list(folder.iterdir())) == 6


def test_names_stay_in_the_folder(tmp_path):
    path = registry.entry_path(tmp_path, "../../x", "a/b" + "c" * 500)
    assert path.parent == tmp_path
    assert len(path.name) < 255


@pytest.mark.parametrize("kind", ["link", "file", "open"])
def test_unsafe_state_folder_is_refused(tmp_path, monkeypatch, kind, capsys):
    runtime = tmp_path / "other"
    runtime.mkdir()
    folder = runtime / "pytest-startup"
    if kind == "link":
        folder.symlink_to(tmp_path)
    elif kind == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with pytest.raises(registry.UnsafeFolder, match="into which nobody else may write"):
        registry.state_folder()
    assert clean.main([]) == 2
    assert "pytest-startup clean: the state folder" in capsys.readouterr().err
    (text,) = clean.sweep()
    assert "nobody else may write" in text


def test_looking_makes_no_folder(tmp_path, capsys):
    assert clean.main([]) == 0
    assert clean.sweep() == []
    assert list((tmp_path / "runtime").iterdir()) == []
    assert "nothing is left" in capsys.readouterr().out


def test_state_folder_without_runtime_dir():
    folder = registry.state_folder({"XDG_RUNTIME_DIR": "/no/such/folder"})
    assert folder == Path(f"/tmp/pytest-startup-{os.getuid()}")
    assert oct(folder.stat().st_mode & 0o777) == "0o700"


def test_who_is_orphaned():
    me = identity.identify(os.getpid())
    assert registry.orphaned(entry())
    assert not registry.orphaned(entry(owner=me))
    assert not registry.orphaned(entry(keeper=me))  # it is being ended right now
    assert registry.orphaned(entry(keeper=me, kept=True))
    assert not registry.orphaned(entry(namespace="pid:[1]"))
    assert registry.orphaned(entry(owner=me, boot="another"))


def test_clean_shows_first_and_removes_on_yes(orphan, capsys):
    folder = registry.state_folder()
    registry.write(folder, entry(known=(identity.identify(orphan.pid),)))
    for argv in ([], ["--dry-run"]):
        assert cli.main(["clean", *argv]) == 1
        out = capsys.readouterr().out.splitlines()
        assert out[0] == "process of run r1, reference, started 2026-11-29T15:00:00Z: vllm serve m"
        assert out[1].startswith(f"  pid {orphan.pid}: {sys.executable} ")
        assert out[2] == "nothing was touched; remove it with --yes"
        assert orphan.poll() is None
    assert cli.main(["clean", "--yes"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith(f"  pid {orphan.pid} ")
    assert out[1].endswith(" removed")
    assert out[2] == "nothing is left of dead runs"
    until(lambda: gone(orphan.pid), "the orphan ended")
    assert cli.main(["clean"]) == 0
    assert capsys.readouterr().out == "nothing is left of dead runs\n"


def test_a_running_run_is_not_touched(orphan, capsys):
    me = identity.identify(os.getpid())
    registry.write(registry.state_folder(), entry(owner=me, known=(identity.identify(orphan.pid),)))
    assert clean.main(["--yes"]) == 0
    assert clean.sweep() == []
    assert orphan.poll() is None
    assert "nothing is left" in capsys.readouterr().out


def test_after_a_reboot_only_the_entry_goes(orphan):
    folder = registry.state_folder()
    registry.write(folder, entry(boot="another", known=(identity.identify(orphan.pid),), shm=("psm_1",)))
    assert clean.sweep() == []
    assert orphan.poll() is None
    assert list(registry.entries(folder)) == []


def test_kept_is_told_and_only_removed_on_request(orphan):
    folder = registry.state_folder()
    registry.write(folder, entry(kept=True, known=(identity.identify(orphan.pid),)))
    (text,) = clean.sweep()
    assert text == (
        "still up: process of run r1, reference, started 2026-11-29T15:00:00Z, left up on purpose: vllm serve m; "
        "remove it with: pytest-startup clean --yes"
    )
    assert orphan.poll() is None
    assert clean.main(["--yes"]) == 0
    until(lambda: gone(orphan.pid), "the orphan ended")


def test_kept_that_has_ended_is_forgotten():
    folder = registry.state_folder()
    registry.write(folder, entry(kept=True, known=(DEAD,)))
    assert clean.sweep() == []
    assert list(registry.entries(folder)) == []


def test_other_kinds_can_be_added_and_unknown_ones_stay(monkeypatch, capsys):
    folder = registry.state_folder()
    registry.write(folder, entry(kind="balloon", labels={"id": "b1"}))
    assert clean.find(folder) == []
    results = [[Leftover("balloon", "b1", False)], [Leftover("balloon", "b1", True)]]
    ways = (lambda e: [f"balloon {e.labels['id']}"], lambda _e: results.pop(0))
    monkeypatch.setitem(clean.KINDS, "balloon", ways)
    assert clean.main([]) == 1
    assert "  balloon b1\n" in capsys.readouterr().out
    assert clean.main(["--yes"]) == 1
    out = capsys.readouterr().out
    assert "balloon b1 could not be removed" in out
    assert "something could not be removed" in out
    assert clean.main(["--yes"]) == 0
    assert list(registry.entries(folder)) == []


def test_wrong_usage(capsys):
    with pytest.raises(SystemExit) as raised:
        clean.main(["--dry-run", "--yes"])
    assert raised.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err
