"""Snapshots of cache folders: what is read again, what is not followed, what changes underneath."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_startup.observe import caches
from pytest_startup.observe.cache_diff import diff, same_content
from pytest_startup.observe.caches import facts_of, snapshot, snapshot_tar, snapshots
from pytest_startup.profile.model import CacheFolder
from pytest_startup.record import CacheFile, CacheTree

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
def folder(tmp_path):
    """Three files, written long ago as far as their stamps tell."""
    root = tmp_path / "cache"
    (root / "a/b").mkdir(parents=True)
    for name, data in (("one", b"1"), ("a/two", b"22"), ("a/b/three", b"")):
        (root / name).write_bytes(data)
    return root


@pytest.fixture
def settled(monkeypatch):
    """Files count as settled at once, so that a second snapshot may trust their stamps."""
    monkeypatch.setattr(caches, "RACY_NS", -(10**12))


def paths(shot):
    return [f.path for f in shot.tree.files]


def test_every_file_is_hashed_with_its_size_and_its_path_below_the_folder(folder):
    shot = snapshot("c", folder)
    assert shot.tree.exists
    assert paths(shot) == ["a/b/three", "a/two", "one"]
    assert [f.size for f in shot.tree.files] == [0, 2, 1]
    assert shot.tree.files[0].sha256 == EMPTY
    assert shot.hashed == 3


def test_a_missing_folder_is_not_an_empty_one(tmp_path):
    assert not snapshot("c", tmp_path / "none").tree.exists
    empty = snapshot("c", tmp_path)
    assert empty.tree.exists
    assert empty.tree.files == ()


def test_a_file_in_the_folders_place_is_no_folder(tmp_path):
    (tmp_path / "f").write_text("x")
    assert not snapshot("c", tmp_path / "f").tree.exists


@pytest.mark.usefixtures("settled")
def test_what_did_not_change_is_not_read_again(folder):
    first = snapshot("c", folder)
    second = snapshot("c", folder, before=first)
    assert second.hashed == 0
    assert second.tree == first.tree
    (folder / "one").write_bytes(b"9")
    (folder / "new").write_bytes(b"n")
    third = snapshot("c", folder, before=second)
    assert third.hashed == 2


@pytest.mark.usefixtures("settled")
def test_an_edit_that_puts_size_and_mtime_back_is_seen_by_the_change_time(folder):
    first = snapshot("c", folder)
    info = (folder / "one").stat()
    (folder / "one").write_bytes(b"2")
    os.utime(folder / "one", ns=(info.st_atime_ns, info.st_mtime_ns))
    second = snapshot("c", folder, before=first)
    change = diff(first.tree, second.tree)
    assert change.changed == ("one",)


def test_a_file_that_was_just_written_is_read_again(folder):
    """Its clock tick may hold a second write that no stamp shows."""
    first = snapshot("c", folder)
    assert first.stamps == {}
    assert snapshot("c", folder, before=first).hashed == 3


@pytest.mark.usefixtures("settled")
def test_a_snapshot_of_another_folder_is_no_help(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "one").write_bytes(b"1")
    assert snapshot("c", folder, before=snapshot("c", other)).hashed == 3


@pytest.mark.usefixtures("settled")
def test_a_file_name_that_is_no_text_is_still_one(folder):
    (folder / os.fsdecode(b"odd\xff")).write_bytes(b"o")
    first = snapshot("c", folder)
    assert paths(first)[-2:] == ["odd\\xff", "one"]
    assert snapshot("c", folder, before=first).hashed == 0
    assert json.dumps(paths(first), ensure_ascii=False).encode()


def test_a_folder_that_may_not_be_entered_is_not_simply_missing(folder, monkeypatch):
    real = os.stat

    def deny(path, *args, **kwargs):
        if path == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", deny)
    shot = snapshot("c", folder)
    assert not shot.tree.exists
    assert [(f.value, f.detail["reason"]) for f in shot.facts] == [
        (".", "a folder that can't be read: Permission denied")
    ]


def test_links_are_followed_inside_the_folder_only(folder, tmp_path):
    outside = tmp_path / "secret"
    outside.write_text("s")
    (folder / "in").symlink_to(folder / "one")
    (folder / "out").symlink_to(outside)
    (folder / "far").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder)
    (folder / "broken").symlink_to(folder / "nothing")
    shot = snapshot("c", folder)
    assert paths(shot) == ["a/b/three", "a/two", "in", "one"]
    assert [(f.value, f.detail["reason"], f.detail.get("folder")) for f in shot.facts] == [
        ("far", "a link to a folder elsewhere; not followed", True),
        ("out", "a link that leads out of the folder; not followed", None),
    ]


def test_pipes_and_sockets_are_left_out(folder):
    os.mkfifo(folder / "pipe")
    assert "pipe" not in paths(snapshot("c", folder))


@pytest.mark.parametrize("what", ["one", "a"])
def test_what_can_not_be_read_is_noted(folder, what, monkeypatch):
    """Denied by the system (the test may run as root, whom no mode stops)."""
    real_open, real_scan = os.open, os.scandir

    def deny(path, *args, **kwargs):
        if Path(path) == folder / what:
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *args, **kwargs)

    def deny_scan(path):
        if Path(path) == folder / what:
            raise PermissionError(13, "Permission denied", str(path))
        return real_scan(path)

    monkeypatch.setattr(os, "open", deny)
    monkeypatch.setattr(os, "scandir", deny_scan)
    shot = snapshot("c", folder)
    why = "Permission denied" if what == "one" else "a folder that can't be read: Permission denied"
    assert [(f.value, f.detail["reason"], f.detail.get("folder")) for f in shot.facts] == [
        (what, why, None if what == "one" else True)
    ]
    unhashed = [f.path for f in shot.tree.files if f.sha256 is None]
    assert unhashed == (["one"] if what == "one" else [])


def test_a_file_that_changes_at_each_try_has_no_hash(folder, monkeypatch):
    real = caches._digest

    def writing(handle, keep):
        out = real(handle, keep)
        with (folder / "one").open("ab") as file:
            file.write(b"x")
        return out

    monkeypatch.setattr(caches, "_digest", writing)
    (folder / "a/two").unlink()
    (folder / "a/b/three").unlink()
    shot = snapshot("c", folder)
    assert [(f.path, f.sha256) for f in shot.tree.files] == [("one", None)]
    assert shot.facts[0].detail["reason"] == "changed while it was read, 3 times"


def test_a_file_that_vanishes_meanwhile_is_left_out(folder, monkeypatch):
    real = os.open

    def vanish(path, *args, **kwargs):
        if Path(path).name == "one":
            os.unlink(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", vanish)
    shot = snapshot("c", folder)
    assert paths(shot) == ["a/b/three", "a/two"]
    assert shot.facts == ()


def test_a_writing_engine_is_survived(tmp_path):
    """Files appear, are rewritten, renamed and removed while snapshots are taken."""
    root = tmp_path / "busy"
    root.mkdir()
    stop = threading.Event()

    def engine():
        number = 0
        while not stop.is_set():
            number += 1
            sub = root / f"d{number % 7}"
            sub.mkdir(exist_ok=True)
            temporary = sub / f".tmp{number}"
            temporary.write_bytes(os.urandom(64))
            temporary.replace(sub / f"f{number % 11}")
            with contextlib.suppress(OSError):
                (root / f"d{(number + 3) % 7}" / f"f{(number + 5) % 11}").unlink()

    worker = threading.Thread(target=engine)
    worker.start()
    try:
        shot = None
        for _ in range(20):
            shot = snapshot("c", root, before=shot)
            assert all(len(f.sha256 or "x" * 64) == 64 for f in shot.tree.files)
    finally:
        stop.set()
        worker.join(10)
    assert not worker.is_alive()
    last = snapshot("c", root, before=shot)
    assert {f.path: f.sha256 for f in last.tree.files} == {f.path: f.sha256 for f in snapshot("c", root).tree.files}


def test_the_four_states_of_a_difference(folder):
    before = snapshot("c", folder).tree
    (folder / "one").write_bytes(b"other")
    (folder / "a/two").unlink()
    (folder / "fresh").write_bytes(b"f")
    os.utime(folder / "a/b/three", ns=(1, 1))
    change = diff(before, snapshot("c", folder).tree)
    assert (change.new, change.changed, change.gone, change.same) == (("fresh",), ("one",), ("a/two",), ("a/b/three",))
    assert change.rewritten == ("a/b/three",)
    assert change
    assert not diff(before, before)
    assert diff(None, before).new == ("a/b/three", "a/two", "one")
    assert diff(before, None).gone == ("a/b/three", "a/two", "one")


files = st.dictionaries(st.text("ab/", min_size=1, max_size=4), st.integers(0, 2), max_size=6)


@settings(deadline=None)
@given(files, files)
def test_a_difference_is_a_partition(one, other):
    def tree(content):
        return CacheTree("c", "/c", True, files=tuple(CacheFile(p, n, n, str(n)) for p, n in content.items()))

    change = diff(tree(one), tree(other))
    assert sorted([*change.new, *change.changed, *change.same]) == sorted(other)
    assert sorted([*change.gone, *change.changed, *change.same]) == sorted(one)
    assert set(change.same) == {p for p in one.keys() & other.keys() if one[p] == other[p]}


def test_without_hashes_size_and_mtime_decide():
    assert same_content(CacheFile("p", 1, 2), CacheFile("p", 1, 2, "ab"))
    assert not same_content(CacheFile("p", 1, 2), CacheFile("p", 1, 3))
    assert same_content(CacheFile("p", 1, 2, "ab"), CacheFile("p", 1, 9, "ab"))


def test_snapshots_of_a_profile_and_their_facts_once(tmp_path):
    root = tmp_path / "fi"
    root.mkdir()
    (root / "autotune_configs.json").write_text("{}")
    folders = [CacheFolder("records", root, "autotune"), CacheFolder("none", tmp_path / "no", "compile")]
    before = snapshots(folders, node="head")
    after = snapshots(folders, before, node="head")
    assert [s.tree.exists for s in before.values()] == [True, False]
    facts = facts_of(before, after)
    assert [(f.name, f.node, f.detail["path"]) for f in facts] == [
        ("autotune.records", "head", "autotune_configs.json")
    ]
    (root / "autotune_configs.json").write_text('{"_metadata": {}}')
    assert len(facts_of(before, snapshots(folders, after, node="head"))) == 2


def test_a_tar_stream_gives_the_same_tree_without_unpacking(folder):
    (folder / "in").symlink_to("one")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(folder, arcname="cache")
    stream.seek(0)
    shot = snapshot_tar("c", "/cache", stream, node="worker")
    here = {f.path: f.sha256 for f in snapshot("c", folder).tree.files if f.path != "in"}
    assert {f.path: f.sha256 for f in shot.tree.files} == here
    assert shot.tree.node == "worker"


@pytest.mark.parametrize("cut", [0, 700, 5000])
def test_a_broken_stream_is_an_error_and_not_a_smaller_cache(folder, cut):
    (folder / "big").write_bytes(b"b" * 4096)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(folder, arcname="cache")
    with pytest.raises(ValueError, match=r"cache c \(/cache\): the archive can't be read: "):
        snapshot_tar("c", "/cache", io.BytesIO(stream.getvalue()[:cut]))
