"""What a restart does to caches before the launch: wiping only what may be wiped, dropping the page cache honestly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_startup.launch import pagecache
from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.wiping import WipeRefused, why_refused, wipe
from pytest_startup.profile.model import CacheFolder


def cache(path: Path | str) -> CacheFolder:
    return CacheFolder("compile-cache", Path(path), "compile")


def test_wipe_removes_the_folder_and_counts(tmp_path):
    folder = tmp_path / "vllm" / "cache"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a").write_bytes(b"x" * 2**20)
    (folder / "b").write_bytes(b"")
    assert wipe(cache(folder)) == f"cache compile-cache wiped: 2 files, 1.0 MiB ({folder})"
    assert not folder.exists()
    assert list(folder.parent.iterdir()) == []
    assert wipe(cache(folder)) == f"cache compile-cache was not there ({folder})"


def test_links_in_the_cache_are_removed_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    folder = tmp_path / "a" / "cache"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    (folder / "file").symlink_to(outside / "precious")
    wipe(cache(folder))
    assert not folder.exists()
    assert (outside / "precious").read_text() == "x"


def test_a_link_in_the_place_of_the_cache_is_refused(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "cache").symlink_to(target)
    with pytest.raises(
        WipeRefused, match=r"nothing is wiped: cache compile-cache: .*/cache is a link \(to .*/target\)"
    ):
        wipe(cache(tmp_path / "cache"))
    assert target.exists()


def test_links_above_the_cache_are_resolved_before_judging(tmp_path):
    (tmp_path / "up").symlink_to("/")
    assert "is not a folder of its own" in why_refused(cache(tmp_path / "up" / "usr"))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "is not a folder of its own"),
        ("/usr", "is not a folder of its own"),
        ("/var/cache", "is not a folder of its own"),
        ("/dev/shm", "is not a folder of its own"),
        ("/no-such-folder", "is not a folder of its own"),
        ("relative/cache", "is not an absolute path"),
        ("/srv/x/../../etc", "is not an absolute path without '..'"),
        ("~", "is not an absolute path"),
    ],
)
def test_what_is_nobodys_cache_is_refused(path, text):
    assert text in why_refused(cache(path))


def test_home_and_current_folder_are_refused(tmp_path, monkeypatch):
    home = tmp_path / "home" / "me"
    (home / "work" / "here").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for path in (home, home.parent):
        assert "is or holds the home folder" in why_refused(cache(path))
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(home / "work" / "here")
    for path in (home / "work", home / "work" / "here"):
        assert "is or holds the current folder" in why_refused(cache(path))


def test_what_holds_something_to_keep_is_refused(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    assert f"holds {folder / 'x' / 'model'}" in why_refused(cache(folder), [folder / "x" / "model"])
    assert why_refused(cache(folder), [tmp_path / "other"]) is None


def test_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(LaunchError, match="is not a folder"):
        wipe(cache(tmp_path / "file"))
    assert (tmp_path / "file").exists()


def test_a_failed_removal_is_told_without_traceback(tmp_path, monkeypatch):
    folder = tmp_path / "a" / "cache"
    folder.mkdir(parents=True)

    def refuse(*_):
        raise PermissionError(13, "Permission denied", "inner")

    monkeypatch.setattr("pytest_startup.launch.wiping.shutil.rmtree", refuse)
    with pytest.raises(WipeRefused, match=r"can't be wiped: Permission denied \(inner\)"):
        wipe(cache(folder))


# page cache


def weights(folder: Path, size: int = 8 * 2**20) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model-00001.safetensors"
    path.write_bytes(os.urandom(2**20) * (size // 2**20))
    return path


def dropping_works(folder: Path) -> bool:
    """Does this file system take part at all (tmpfs and some overlays keep what they have)?"""
    path = weights(folder)
    done = pagecache.drop_page_cache([path])
    path.unlink()
    return done.complete is True


def test_drop_and_how_much_was_dropped(tmp_path):
    if not dropping_works(tmp_path / "probe"):
        pytest.skip("the file system of the temporary folder keeps its pages")
    path = weights(tmp_path / "model")
    path.read_bytes()
    done = pagecache.drop_page_cache([tmp_path / "model"])
    assert done.files == 1
    assert done.before == done.size == 8 * 2**20
    assert done.after == 0
    assert done.complete is True
    assert done.text == "page cache: 1 files, 0.01 GiB: 0.01 GiB were cached, 0.00 GiB still are"


def test_mapped_pages_stay_and_are_told(tmp_path):
    import mmap

    if not dropping_works(tmp_path / "probe"):
        pytest.skip("the file system of the temporary folder keeps its pages")
    path = weights(tmp_path / "model")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[i] for i in range(0, len(mapped), mmap.PAGESIZE)) >= 0
        done = pagecache.drop_page_cache([path])
    assert done.complete is False
    assert done.after > 0
    assert "model-00001.safetensors keeps 8.0 MiB (mapped by a process, or its file system)" in done.text


def test_links_are_followed_once(tmp_path):
    path = weights(tmp_path / "blobs", 2**20)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "one.safetensors").symlink_to(path)
    (snapshot / "two.safetensors").symlink_to(path)
    assert list(pagecache.plain_files([snapshot])) == [path]
    assert list(pagecache.plain_files([path, snapshot])) == [path]


def test_nothing_found_is_no_success(tmp_path):
    done = pagecache.drop_page_cache([tmp_path / "missing"])
    assert (done.files, done.complete) == (0, False)
    assert done.text == f"page cache: nothing was dropped; no file found at {tmp_path / 'missing'}"
    nowhere = pagecache.drop_page_cache([])
    assert nowhere.text == "page cache: nothing was dropped; no checkpoint is known: give launch.checkpoint"


def test_unreadable_files_are_told(tmp_path, monkeypatch):
    path = weights(tmp_path / "model", 2**20)
    real = os.open

    def refuse(name, *rest, **more):
        if str(name) == str(path):
            raise PermissionError(13, "Permission denied")
        return real(name, *rest, **more)

    monkeypatch.setattr(pagecache.os, "open", refuse)
    done = pagecache.drop_page_cache([path])
    assert done.complete is False
    assert f"{path} can't be opened: Permission denied" in done.text


def test_unknown_is_not_zero(tmp_path, monkeypatch):
    path = weights(tmp_path / "model", 2**20)
    monkeypatch.setattr(pagecache, "cached", lambda *_: None)
    done = pagecache.drop_page_cache([path])
    assert done.complete is None
    assert "how much was dropped can't be told here" in done.text
