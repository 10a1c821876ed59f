"""Ctrl-C, time limits and a defect while a start is made: the engine is stopped, and the record says so."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers_launch import gone, isolate
from helpers_live import Outside, Site, quick, schema_problems_of


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    isolate(tmp_path, monkeypatch)
    return Site(tmp_path)


def interrupted(folder: Path, start: str) -> dict[str, Any]:
    """The failure of an interrupted start; its record and the manifest are whole."""
    record: dict[str, Any] = json.loads((folder / start / "record.json").read_text())
    manifest = json.loads((folder / "run.json").read_text())
    assert schema_problems_of(folder) == []
    assert record["failure"]["kind"] == "interrupted"
    assert manifest["failed"] == {start: "interrupted"}
    assert manifest["interrupted"] == start
    assert all(one["released"] for one in record["cleanup"])
    pid = next(f["value"] for f in record["facts"] if f["fact"] == "process.pid")
    assert gone(pid)
    failure: dict[str, Any] = record["failure"]
    return failure


def test_ctrl_c_while_it_waits(site: Site) -> None:
    site.write({"hang": "Starting to load model"}, text=quick())
    run = Outside(site)
    run.logged(b"Starting to load model")
    run.interrupt()
    code, out = run.end()
    assert code == 2, out
    assert "Traceback" not in out
    assert "KeyboardInterrupt" in out
    failure = interrupted(run.folder, "reference")
    assert failure["summary"] == "the start was interrupted: Ctrl-C"
    assert failure["phase"] == "weights"
    assert failure["last_lines"]


def test_a_second_ctrl_c_kills_an_engine_that_ignores_the_first(site: Site) -> None:
    """The first one says what it waits for and how to hasten it; the proof of the end comes all the same."""
    hang = {"hang": "Starting to load model", "ignore_term": "always"}
    site.write(hang, text=quick().replace("stop: 5s", "stop: 600s"))
    run = Outside(site)
    run.logged(b"Starting to load model")
    run.interrupt()
    assert run.process.stdout is not None
    told = "reference: Ctrl-C; stopping the engine, KILL after 600 s (Ctrl-C again: at once)"
    assert any(told in line for line in run.process.stdout)
    run.interrupt()
    code, out = run.end()
    assert code == 2, out
    assert "Traceback" not in out
    assert interrupted(run.folder, "reference")["phase"] == "weights"


def test_ctrl_c_within_the_workload(site: Site) -> None:
    """Requests that would take minutes don't hold it up."""
    slow = "throughput: {{concurrency: [2], output_tokens: 64, prompt_tokens: 8, repeats: 7}}\n  quality"
    text = quick().replace("request: 2s", "request: 300s").replace("quality", slow, 1)
    site.write({"token_seconds": 0.01, "completion": ["good"] * 5 + ["never"]}, text=text)
    run = Outside(site)
    run.logged(b"POST /v1/chat/completions")  # the list of routes names it, too
    run.interrupt()
    code, out = run.end()
    assert code == 2, out
    assert "Traceback" not in out
    assert interrupted(run.folder, "reference")["phase"] == "serving"


def test_ctrl_c_while_completions_are_asked_at_once(site: Site) -> None:
    site.write({"completion": ["good"] * 4 + ["never"]}, text=quick().replace("request: 2s", "request: 300s"))
    run = Outside(site)
    run.logged(b"POST /v1/chat/completions")  # the list of routes names it, too
    run.interrupt()
    code, out = run.end()
    assert code == 2, out
    assert interrupted(run.folder, "reference")["phase"] == "serving"


def test_ctrl_c_while_the_second_start_waits(site: Site) -> None:
    site.write({}, {"hang": "Starting to load model"}, text=quick())
    run = Outside(site)
    run.logged(b"Starting to load model", "restart-1")
    run.interrupt()
    code, out = run.end()
    assert code == 2, out
    interrupted(run.folder, "restart-1")
    reference = json.loads((run.folder / "reference/record.json").read_text())
    assert "failure" not in reference
    assert reference["cleanup"]


def test_a_defect_of_ours_stops_the_engine_and_is_told_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write({}, text=quick())

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("pytest_startup.observe.endpoints.collect", broken)
    with site.gate() as gate:
        with pytest.raises(RuntimeError, match="no such luck"):
            gate.record("reference")
        record = gate.records()["reference"]
        assert record.failure is not None
        assert record.failure.kind == "defect"
        assert record.failure.summary == "the start ended by a defect of pytest-startup: RuntimeError: no such luck"
        assert record.cleanup
        assert all(one.released for one in record.cleanup)


def test_an_interrupt_while_it_is_stopped_still_proves_the_end(site: Site) -> None:
    """Ctrl-C within the stop means KILL now; the record is complete before it is raised on."""
    site.write({"ignore_term": "always"}, text=quick().replace("stop: 5s", "stop: 60s"))
    with site.gate() as gate:
        gate.record("reference")
        log = gate.engine().logs[0]
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            gate.verdict("reference", "cleanup")
        record = gate.records()["reference"]
        assert record.cleanup
        assert all(one.released for one in record.cleanup)
        assert log.path.exists()
    manifest = json.loads((record_folder(site) / "run.json").read_text())
    assert manifest["interrupted"] == "reference"


def record_folder(site: Site) -> Path:
    (folder,) = site.artifacts.glob("*/*")
    return folder
