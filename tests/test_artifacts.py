"""The folder of a run: names that stay inside, files written whole or not at all, messages that help."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pytest_startup import artifacts
from pytest_startup.artifacts import ArtifactsError, RunFolder, read_manifest, read_record, run_folder
from pytest_startup.record import Completion, Evidence, Fact, StartRecord
from pytest_startup.record_json import record_to_json
from pytest_startup.redact import Redactor

WHEN = "2026-11-29T15:00:00Z"
RECORD = StartRecord(
    "p",
    "reference",
    "process",
    "reference",
    WHEN,
    argv=("vllm", "serve"),
    facts=(Fact("kv.tokens", 4096, Evidence("log", "head/engine.log", "with hunter22 in it", 7), "tokens"),),
    completions=(Completion("ready", "?", 200, text="hunter22", tokens=("hunter22", "!")),),
    log_bytes={"head": 10},
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(run_folder(tmp_path, "p", WHEN), Redactor({"hunter22"}))


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path) -> None:
    names = [run_folder(tmp_path, "p", WHEN).relative_to(tmp_path).as_posix() for _ in range(3)]
    assert names == ["p/2026-11-29T15-00-00Z", "p/2026-11-29T15-00-00Z-2", "p/2026-11-29T15-00-00Z-3"]


BAD_NAMES = ["", ".", "..", "a/b", "../x", "/etc", "a\0b"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, run: RunFolder, name: str) -> None:
    with pytest.raises(ArtifactsError, match="can't name a folder of artifacts: expected one name without slashes"):
        run_folder(tmp_path, name, WHEN)
    with pytest.raises(ArtifactsError, match="is not the name of a start"):
        run.start_folder(name)
    with pytest.raises(ArtifactsError, match="is not the name of a start"):
        read_record(run.path, name)


@pytest.mark.parametrize("name", ["reference", "restart-1", "extra-12", "..."])
def test_a_start_has_its_folder(run: RunFolder, name: str) -> None:
    assert run.start_folder(name) == run.path / name
    assert run.start_folder(name).is_dir()


def test_a_link_in_place_of_a_start_is_not_followed(tmp_path: Path, run: RunFolder) -> None:
    (run.path / "reference").symlink_to(tmp_path)
    with pytest.raises(ArtifactsError, match=r"reference is not a folder of this run"):
        run.start_folder("reference")


def test_a_record_comes_back_as_it_was_written(run: RunFolder) -> None:
    run.start_folder("reference")
    shown = run.write_record(RECORD)
    assert shown == read_record(run.path, "reference")
    assert shown.completions[0].text == "[redacted]"
    assert shown.completions[0].tokens == ("[redacted]", "!")
    assert shown.facts[0].evidence.text == "with [redacted] in it"
    assert shown.log_bytes == {"head": 10}
    assert "hunter22" not in (run.path / "reference/record.json").read_text()


def test_without_secrets_nothing_is_changed(tmp_path: Path) -> None:
    run = RunFolder(run_folder(tmp_path, "p", WHEN), Redactor())
    run.start_folder("reference")
    assert run.write_record(RECORD) == RECORD


def test_text_that_is_no_unicode_can_be_written(run: RunFolder) -> None:
    run.write_json("odd.json", {"text": "a \ud800 b"})
    assert json.loads((run.path / "odd.json").read_text(encoding="utf-8"))["text"] == "a \ud800 b"


def test_a_file_that_can_not_be_written_leaves_the_old_one(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_manifest({"starts": ["reference"]})

    def full(self: Path, *_: Any, **__: Any) -> None:
        os.close(os.open(self, os.O_CREAT | os.O_WRONLY))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ArtifactsError) as error:
        run.write_manifest({"starts": []})
    assert str(error.value) == (
        f"{run.path}/run.json can't be written: No space left on device; make room, or choose another folder with "
        "--startup-artifacts"
    )
    assert [p.name for p in run.path.iterdir()] == ["run.json"]
    assert read_manifest(run.path)["starts"] == ["reference"]


def test_the_profile_is_kept_without_secrets(run: RunFolder) -> None:
    run.write_profile(b"token: hunter22\nother: \xff\n", {"token": "hunter22"})
    assert (run.path / "profile.yaml").read_text() == "token: [redacted]\nother: \ufffd\n"
    assert json.loads((run.path / "profile.resolved.json").read_text()) == {"token": "[redacted]"}
    assert stat.S_ISREG((run.path / "profile.yaml").stat().st_mode)


MANIFESTS = {
    "not there": (None, r"holds no run: run\.json is not there$"),
    "no JSON": ("{", r"run\.json can't be read: Expecting property name"),
    "a list": ("[]", r"run\.json is not the manifest of a run: no list 'starts'"),
    "no starts": ("{}", "no list 'starts'"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_folder_that_holds_no_run(tmp_path: Path, name: str) -> None:
    text, message = MANIFESTS[name]
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(ArtifactsError, match=message):
        read_manifest(tmp_path)


def test_the_nearest_run_is_named(tmp_path: Path) -> None:
    for when in ("2026-11-29T15:00:00Z", "2026-11-30T15:00:00Z"):
        RunFolder(run_folder(tmp_path, "p", when), Redactor()).write_manifest({"starts": []})
    newest = tmp_path / "p" / "2026-11-30T15-00-00Z"
    assert artifacts.saved_runs(tmp_path) == [newest, tmp_path / "p" / "2026-11-29T15-00-00Z"]
    for folder in (tmp_path, tmp_path / "p"):
        with pytest.raises(ArtifactsError, match=rf"did you mean {newest}\?$"):
            read_manifest(folder)


RECORDS = {
    "not there": (None, r"record\.json can't be read: No such file"),
    "no JSON": ("nope", r"record\.json is not the record of a start: Expecting value"),
    "a list": ("[]", "is not the record of a start"),
    "another schema": ('{"schema": 2}', "record schema 2, this version reads 1"),
    "a member too many": (json.dumps({**record_to_json(RECORD), "extra": 1}), "unexpected keyword argument 'extra'"),
    "a fact without a name": (json.dumps({**record_to_json(RECORD), "facts": [{}]}), "is not the record of a start"),
    "too deep": ("[" * 100_000, "is not the record of a start"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_none(run: RunFolder, name: str) -> None:
    text, message = RECORDS[name]
    run.start_folder("reference")
    if text is not None:
        (run.path / "reference/record.json").write_text(text)
    with pytest.raises(ArtifactsError, match=message):
        read_record(run.path, "reference")
