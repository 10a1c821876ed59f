"""Saved runs judged again: the same items, no engine, honest words about what a folder does not hold."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers_launch import isolate
from helpers_live import Outside, Run, Site, live, quick, replayed

from pytest_startup.artifacts import ArtifactsError
from pytest_startup.gate import StartFailed
from pytest_startup.launch.base import LaunchError
from pytest_startup.profile.expect import Prompt

NEEDS = "${{MY_TOKEN}}"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, Run]:
    """A whole run with a secret in its environment."""
    site = Site(tmp_path_factory.mktemp("saved"), {"MY_TOKEN": "s3cr3t-value"})
    with pytest.MonkeyPatch.context() as patch:
        isolate(site.folder, patch)
        site.write(text=quick().replace("env: {{", f'env: {{{{HF_TOKEN: "{NEEDS}", '))
        return site, live(site)


@pytest.fixture
def copy(saved: tuple[Site, Run], tmp_path: Path) -> tuple[Site, Path]:
    """A copy that a test may damage, in another place, without the secret."""
    site, run = saved
    assert run.folder is not None
    shutil.copytree(run.folder, tmp_path / "run")
    shutil.copy(site.path, tmp_path / "profile.yaml")
    return Site(tmp_path, {"MY_TOKEN": "another-value"}), tmp_path / "run"


def edit(path: Path, **members: Any) -> None:
    data = {**json.loads(path.read_text()), **members}
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))


def test_a_copy_elsewhere_gives_the_same(saved: tuple[Site, Run], copy: tuple[Site, Path]) -> None:
    _, run = saved
    again = replayed(*copy)
    assert again.verdicts == run.verdicts
    assert again.records == run.records
    assert again.notes == ()


def test_nothing_is_written_and_nothing_runs(copy: tuple[Site, Path]) -> None:
    site, folder = copy
    before = {p: p.stat().st_mtime_ns for p in site.folder.rglob("*")}
    gate = site.replay(folder)
    gate.record("restart-1")
    gate.close()
    assert {p: p.stat().st_mtime_ns for p in site.folder.rglob("*")} == before
    assert gate.preflight() == []
    assert gate.folder == folder
    assert list(gate.records()) == ["reference", "restart-1"]


def test_what_needs_an_engine_is_refused(copy: tuple[Site, Path]) -> None:
    site, folder = copy
    gate = site.replay(folder)
    for call in (gate.engine, gate.restart, lambda: gate.restart("process"), lambda: gate.complete(Prompt("?"))):
        with pytest.raises(LaunchError, match=r"^a replay (has no engine|can't restart)"):
            call()


def test_a_verdict_that_has_changed_is_told(copy: tuple[Site, Path]) -> None:
    site, folder = copy
    site.path.write_text(site.path.read_text().replace("version: 0.31.0", "version: 0.30.0"))
    run = replayed(site, folder)
    assert run.notes == (
        "reference::identity is failed now; it was passed when the run was made",
        "restart-1::identity is failed now; it was passed when the run was made",
    )


def test_a_restart_that_the_run_did_not_make(copy: tuple[Site, Path]) -> None:
    site, folder = copy
    site.path.write_text(site.path.read_text().replace("{kind: process}", "{kind: process, times: 2}"))
    with pytest.raises(LaunchError) as refused:
        site.replay(folder).record("restart-2")
    assert str(refused.value) == f"{folder} holds no start 'restart-2': that run made reference, restart-1"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('args: [--max-model-len, "1024"', "args: [--enforce-eager", "engine.args"),
        ("model: models/dense", "model: models/moe", "engine.model"),
        ("VLLM_CACHE_ROOT: cache", "VLLM_CACHE: cache", "engine.env"),
        ("{kind: process}", "{kind: process, drop_page_cache: true}", "restarts (restart-1)"),
        ("{kind: process}", "{kind: process, change: {args: [--enforce-eager]}}", "restarts (restart-1)"),
        ("{kind: process}", "{kind: process, wipe: [compile-cache]}", "restarts (restart-1)"),
    ],
)
def test_a_run_of_this_profile_before_it_launched_something_else(
    copy: tuple[Site, Path], old: str, new: str, key: str
) -> None:
    """What was run then is no evidence for what would be launched now."""
    site, folder = copy
    text = site.path.read_text()
    assert old in text
    site.path.write_text(text.replace(old, new))
    with pytest.raises(ArtifactsError) as error:
        site.replay(folder)
    assert str(error.value).startswith(f"{folder} was run with another {key} than profile.yaml has: a replay judges")


@pytest.mark.parametrize("member", [{"name": "reference"}, {"profile": "other"}, {"kind": "fresh-container"}])
def test_the_record_of_another_start_in_its_place(copy: tuple[Site, Path], member: dict[str, str]) -> None:
    site, folder = copy
    edit(folder / "restart-1/record.json", **member)
    with pytest.raises(LaunchError, match=r"restart-1 holds the record of .*, not of stand-in restart-1 \(process\)$"):
        site.replay(folder).record("restart-1")


@pytest.mark.parametrize("left", [b"", b"half"])
def test_a_log_that_was_cut_since_the_run_shows_nothing_behind_the_cut(copy: tuple[Site, Path], left: bytes) -> None:
    site, folder = copy
    log = folder / "restart-1/head/engine.log"
    log.write_bytes(log.read_bytes()[:-9000] if left else b"")
    verdict = replayed(site, folder).verdicts["restart-1::ready"]
    assert not isinstance(verdict, str)
    assert verdict.outcome.value == "not observable"
    assert "the log of this start is incomplete" in verdict.findings[0].summary
    assert "bytes are left of it" in verdict.findings[0].summary


def test_a_run_of_another_profile(copy: tuple[Site, Path]) -> None:
    site, folder = copy
    edit(folder / "run.json", profile="other")
    with pytest.raises(ArtifactsError) as error:
        site.replay(folder)
    assert str(error.value) == f"{folder} is a run of profile 'other'; profile.yaml is 'stand-in'"


def test_a_manifest_can_not_lead_out_of_the_folder(copy: tuple[Site, Path]) -> None:
    site, folder = copy
    edit(folder / "run.json", starts=["reference", "../../x", "restart-1"])
    gate = site.replay(folder)
    with pytest.raises(LaunchError, match=r"'\.\./\.\./x' is not the name of a start"):
        gate.record("../../x")


@pytest.mark.parametrize("damage", ["missing", "no JSON"])
def test_a_damaged_record_is_refused_in_words(copy: tuple[Site, Path], damage: str) -> None:
    site, folder = copy
    path = folder / "restart-1" / "record.json"
    path.unlink() if damage == "missing" else path.write_text("{")
    gate = site.replay(folder)
    assert gate.record("reference").ready
    with pytest.raises(LaunchError, match=r"record\.json (can't be read: No such file|is not the record of a start)"):
        gate.record("restart-1")


def test_damaged_answers_are_refused_in_words(copy: tuple[Site, Path]) -> None:
    site, folder = copy
    (folder / "reference/endpoints/index.json").write_text("{")
    with pytest.raises(LaunchError, match=r"reference/endpoints can't be read: "):
        site.replay(folder).record("reference")


def test_facts_come_from_the_files_and_not_from_the_record(copy: tuple[Site, Path]) -> None:
    """Who edits the record alone gains nothing: the log says what it said."""
    site, folder = copy
    record = folder / "restart-1" / "record.json"
    text = record.read_text()
    assert "262144" in text
    record.write_text(text.replace("262144", "999999").replace("262,144", "999,999"))
    values = {f.value for f in site.replay(folder).record("restart-1").facts if f.name == "kv.tokens"}
    assert values == {262144}


def test_records_without_an_end_of_their_log_are_read_whole(copy: tuple[Site, Path]) -> None:
    site, folder = copy
    edit(folder / "reference" / "record.json", log_bytes=None)
    whole = (folder / "reference/head/engine.log").stat().st_size
    assert site.replay(folder).record("reference").log_bytes == {"head": whole}


def test_a_failed_start_stays_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)
    site = Site(tmp_path)
    site.write({"exit": {"at": "start", "code": 3}}, text=quick())
    run = live(site)
    assert run.folder is not None
    gate = site.replay(run.folder)
    for _ in range(2):
        with pytest.raises(StartFailed) as failed:
            gate.record("restart-1")
        assert failed.value.record.name == "reference"
    assert gate.verdict("reference", "ready").outcome.value == "failed"
    with pytest.raises(StartFailed):
        gate.verdict("reference", "kv")


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A red run and its replay print the same items, with the same words, without the run's environment."""
    isolate(tmp_path, monkeypatch)
    site = Site(tmp_path)
    text = quick().replace("env: {{", f'env: {{{{HF_TOKEN: "{NEEDS}", ')
    site.environ = {"MY_TOKEN": "s3cr3t-value"}
    site.write({}, {"kv_tokens": 131072}, text=text)
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    first = Outside(site, "-v").end()
    (folder,) = site.artifacts.glob("*/*")
    monkeypatch.delenv("MY_TOKEN")
    again = Outside(site, "-v", "--startup-replay", str(folder)).end()
    assert first[0] == again[0] == 1, again[1]
    assert failures(first[1]) == failures(again[1])
    assert "metrics and log disagree about the KV cache" in again[1]
    assert re.search(r"^REJECTED  .*restart-1: .*kv", again[1], re.MULTILINE)
    assert "s3cr3t-value" not in first[1] + again[1]
    code, out = Outside(site, "--startup-replay", str(tmp_path)).end()
    assert code == 4
    assert re.search(r"ERROR: .* holds no run: run\.json is not there", out)
    assert "Traceback" not in out


def failures(out: str) -> list[str]:
    """The part of pytest's output that shows what is red."""
    lines = out.splitlines()
    begin = next(i for i, line in enumerate(lines) if "= FAILURES =" in line)
    end = next(i for i, line in enumerate(lines) if "= startup: " in line)
    return lines[begin:end]
