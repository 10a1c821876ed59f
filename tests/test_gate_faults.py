"""Faults of an engine, made from one end to the other: what goes red, in which words; and a replay says the same."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers_launch import FAKE, isolate, until
from helpers_live import Run, Site, live, quick, replayed, schema_problems

from pytest_startup.launch.ports import free_port
from pytest_startup.observe.ready import ReadyWatch

#: What the log of this engine can't show on this machine.
ALWAYS = {"backend": "not observable", "autotune": "not observable", "graphs": "not observable"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    isolate(tmp_path, monkeypatch)
    return Site(tmp_path)


def same_when_replayed(site: Site, run: Run) -> None:
    """Every verdict with all its texts and evidence, and every record, as it was judged live."""
    assert run.folder is not None
    again = replayed(site, run.folder)
    assert again.verdicts == run.verdicts
    assert again.records == run.records
    assert again.notes == ()


@dataclass(frozen=True)
class Fault:
    """``how`` each start behaves. ``red``: item → outcome beside ``ALWAYS``; of a failed start only what judges it."""

    how: tuple[dict[str, Any], ...]
    red: dict[str, str]
    summary: str = ""
    kind: str = ""
    phase: str = ""
    cause: str = ""
    helps: str = ""
    ready: str = "20s"


RANK = {"name": "VLLM::Worker_TP1", "at": "open"}
OOM = "(EngineCore pid=1) ERROR 11-29 15:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory."
NOT_READY = {"reference::ready": "failed", "reference::phases": "failed"}
HALF = {"replace": {"262,144": "131,072"}, "kv_tokens": 131072}
NO_START = {"reference::ready": "failed", "reference::log": "failed"}

FAULTS = {
    "killed while it loads weights": Fault(
        ({"kill": {"at": "Starting to load model"}},),
        NO_START,
        r"the engine ended before it was ready \(exit code -9\): .* was killed by SIGKILL",
        "killed",
        "weights",
    ),
    "ends with code 0 before it is ready": Fault(
        ({"exit": {"at": "Warming up done", "code": 0}},),
        NO_START,
        r"the engine ended before it was ready \(exit code 0\): .* ended with exit code 0",
        "ended",
        "profiling",
    ),
    "ends with a cause in its log": Fault(
        ({"exit": {"at": "Starting to load model", "code": 1, "text": OOM}},),
        NO_START,
        "out of device memory",
        "out-of-device-memory",
        "weights",
        "head/engine.log:36",
        "a smaller or more quantized checkpoint",
    ),
    "stands still": Fault(
        ({"hang": "Starting to load model"},),
        {**NO_START, **NOT_READY},
        r"not ready after 2\.\d s, the deadline is 2 s; in phase weights for \d\.\d s; connect: nothing listens",
        "deadline",
        "weights",
        helps="compare the last lines",
        ready="2s",
    ),
    "health never answers": Fault(
        ({"health": "never"},),
        NOT_READY,
        r"not ready after .*; in phase serving .*; GET /health is unanswered for \d\.\d s",
        "deadline",
        ready="3s",
    ),
    "health says 500": Fault(({"health": 500},), NOT_READY, r"; GET /health: HTTP 500$", "deadline", ready="2s"),
    "answers are empty": Fault(
        ({"completion": "empty"},),
        NOT_READY,
        r"; POST /v1/completions: HTTP 200 with empty text$",
        "deadline",
        "serving",
        helps="the API server is up; what it answers is wrong or does not come",
        ready="2s",
    ),
    "answers are cut off": Fault(
        ({"completion": "truncated"},), NOT_READY, "HTTP 200 answer cut off after", "deadline", ready="2s"
    ),
    "answers never come": Fault(
        ({"completion": "never"},),
        NOT_READY,
        "/completions(: no complete answer| is unanswered)",
        "deadline",
        ready="3s",
    ),
    "answers come from a proxy": Fault(
        ({"completion": "html"},), NOT_READY, "body is not JSON .*temporarily served by proxy", "deadline", ready="2s"
    ),
    "another model is served": Fault(
        ({"model": "another"},),
        NOT_READY,
        "HTTP 404 .*model `models/dense` does not exist",
        "deadline",
        helps="the argument --served-model-name makes an engine serve under another name",
        ready="2s",
    ),
    "answers under another name": Fault(
        ({"completion": "model"},), {"reference::ready": "failed", "restart-1::ready": "failed"}
    ),
    "text is garbage": Fault(
        ({"completion": "garbage"},),
        {f"{start}::{check}": "failed" for start in ("reference", "restart-1") for check in ("ready", "quality")},
    ),
    "text is garbage when several are asked at once": Fault(
        ({"crowded": "garbage"},),
        {"reference::ready": "failed", "restart-1::ready": "failed"},
        "completions asked at once is not a sane text: ",
    ),
    "counts of tokens are wrong": Fault(
        ({"completion": "usage"},), {"reference::ready": "failed", "restart-1::ready": "failed"}
    ),
    "killed after its first answers": Fault(
        ({"kill": {"at": "requests:2"}},),
        {"reference::ready": "failed"},
        r"the engine ended while it served \(exit code -9\): .* was killed by SIGKILL",
        "killed",
        "serving",
    ),
    "ends with code 0 while it serves": Fault(
        ({"exit": {"at": "requests:5", "code": 0}},),
        {"reference::ready": "failed"},
        r"the engine ended while it served \(exit code 0\): .* ended with exit code 0",
        "ended",
        "serving",
    ),
    "a rank is killed and the next answer never comes": Fault(
        ({"children": [{**RANK, "die_at": "requests:3"}], "completion": [*["good"] * 3, "never"]},),
        {"reference::ready": "failed"},
        r"^VLLM::Worker_TP1 \(pid \d+\) was killed by SIGKILL while the engine served$",
        "killed",
        "serving",
        helps="who else may have sent the signal",
    ),
    "a rank is killed as the engine gets ready": Fault(
        ({"children": [{**RANK, "die_at": "ready"}]},),
        {"reference::ready": "failed"},
        r"^VLLM::Worker_TP1 \(pid \d+\) was killed by SIGKILL ",
        "killed",
        helps="who else may have sent the signal",
    ),
    "health 200 and no answer any more": Fault(
        ({"completion": ["good", "never"]},),
        {"reference::ready": "failed"},
        "the engine served no more after the workload: /health 200; completion no complete answer within 2 s",
        "not-serving",
        "serving",
    ),
    "the last completion fails": Fault(
        ({"completion": [*["good"] * 5, "error"]},),
        {"reference::ready": "failed"},
        "the engine served no more after the workload: /health 200; completion 500",
        "not-serving",
        "serving",
    ),
    "half of the KV cache after the restart": Fault(({}, HALF), {"restart-1::kv": "failed"}),
    "metrics and log disagree": Fault(({}, {"kv_tokens": 131072}), {"restart-1::kv": "failed"}),
    "other tokens after the restart": Fault(({}, {"completion": "drift"}), {"restart-1::quality": "failed"}),
    "another version": Fault(
        ({"version": "0.30.0"},), {"reference::identity": "failed", "restart-1::identity": "failed"}
    ),
    "a forbidden line": Fault(
        ({"insert": {"Warming up done": "Traceback (most recent call last):"}},),
        {"reference::log": "failed", "restart-1::log": "failed"},
    ),
    "nothing is logged": Fault(
        ({"log": "/dev/null"},),
        {
            f"{start}::{check}": "not observable"
            for start in ("reference", "restart-1")
            for check in ("artifacts", "log")
        },
    ),
    "the restart fails": Fault(
        ({}, {"kill": {"at": "Starting to load model"}}),
        {"restart-1::ready": "failed", "restart-1::log": "failed"},
        "the engine ended before it was ready",
        "killed",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_red_and_says_why(site: Site, name: str) -> None:
    fault = FAULTS[name]
    site.write(*fault.how, text=quick(ready=fault.ready))
    run = live(site)
    failed = next((r for r in run.records.values() if r.failure is not None), None)
    judged = {k: v for k, v in run.red().items() if not v.startswith("start ") and k.partition("::")[2] not in ALWAYS}
    assert judged == fault.red
    assert (failed is not None) == bool(fault.kind)
    if failed is not None and failed.failure is not None:
        failure = failed.failure
        assert failure.kind == fault.kind
        assert re.search(fault.summary, failure.summary), failure.summary
        assert fault.phase in ("", failure.phase)
        assert failure.node == "head"
        assert failure.after_seconds is not None
        assert (failure.cause.place() if failure.cause else "") == fault.cause
        assert failure.cause or all(e.where == "head/engine.log" and e.line for e in failure.last_lines)
        assert failure.cause or len(failure.last_lines) == 5
        assert fault.helps in " ".join(failure.helps)
        assert failed.cleanup
        others = {v for k, v in run.red().items() if v.startswith("start ")}
        assert others == {f"start {failed.name} failed"}
    assert schema_problems(run) == []
    same_when_replayed(site, run)


def test_a_good_engine_is_green_live_and_replayed(site: Site) -> None:
    site.write({"token_seconds": 0.01})
    run = live(site)
    measured = run.verdicts["restart-1::throughput"]
    assert not isinstance(measured, str)
    unsure = {"restart-1::throughput"} if measured.waivable else set()  # a busy machine: "cannot tell"
    always = {f"{start}::{check}" for start in ("reference", "restart-1") for check in ALWAYS}
    assert set(run.red()) - unsure == always
    assert schema_problems(run) == []
    same_when_replayed(site, run)


def test_what_is_printed_while_it_is_stopped_does_not_count(site: Site) -> None:
    """vLLM prints tracebacks at many clean stops: they lie behind the record's end of the log, also on a replay."""
    text = quick().replace("forbid: [Traceback]", 'forbid: ["Shutting down"]')
    site.write({}, text=text)
    run = live(site)
    assert run.folder is not None
    log = (run.folder / "reference/head/engine.log").read_bytes()
    assert b"Shutting down" in log
    assert run.records["reference"].log_bytes["head"] < len(log)
    assert "reference::log" not in run.red()
    same_when_replayed(site, run)


def test_an_unfinished_last_line_is_read_the_same_again(site: Site) -> None:
    """The observation ends in the middle of a line; its rest comes with the stop."""
    text, seen = "Loading weights took 5.00 sec", site.folder / "seen"
    site.write({"open_line": text, "quiet": True, "hold": {"at": "open", "until": str(seen)}}, text=quick())
    logs = (site.artifacts, "*/*/reference/head/engine.log")

    def wait() -> None:
        until(lambda: any(log.read_text().endswith(text) for log in logs[0].glob(logs[1])), "the line's beginning")
        seen.touch()

    watch = threading.Thread(target=wait)
    watch.start()
    run = live(site)
    watch.join()
    assert run.folder is not None
    log = (run.folder / "reference/head/engine.log").read_bytes()
    end = run.records["reference"].log_bytes["head"]
    assert log[:end].endswith(b"5.00 sec")
    same_when_replayed(site, run)


def test_without_its_log_and_answers_a_saved_run_is_not_green(site: Site) -> None:
    site.write({}, text=quick())
    run = live(site)
    assert run.folder is not None
    for file in run.folder.glob("*/head/engine.log"):
        file.write_bytes(b"")
    for file in run.folder.glob("*/endpoints/*"):
        file.unlink()
    again = replayed(site, run.folder).red()
    assert again["restart-1::kv"] == "not observable"
    assert again["restart-1::log"] == "not observable"
    assert again["reference::artifacts"] == "not observable"


def test_answers_that_are_never_a_completion_end_the_wait_and_say_where_to_look(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write({"completion": "truncated"}, text=quick())
    monkeypatch.setattr("pytest_startup.start.ReadyWatch", functools.partial(ReadyWatch, give_up_after=0.2))
    run = live(site)
    failure = run.records["reference"].failure
    assert failure is not None
    assert (failure.kind, failure.phase) == ("not-serving", "serving")
    assert failure.summary.startswith(
        "the engine answers, but not with a completion: for 0.2 s every completion was unus"
    )
    assert "HTTP 200 answer cut off after" in failure.summary
    assert failure.helps[-1] == "whether something stands in front of the engine: a proxy, a gateway, a wrapper"
    assert failure.no_help == ("a longer deadline: health 200 proves nothing about the engine behind it",)


def test_another_server_on_the_port_never_counts(site: Site) -> None:
    """A perfect engine, but not the one that was started, listens before that one can."""
    port, lock = free_port("127.0.0.1", "test")
    lock.release()
    site.write(
        {"hang": "Starting to load model"},
        text=quick("4s").replace("launch:\n", f"launch:\n  port: {port}\n").replace("release: 10s", "release: 1s"),
    )
    with foreign_engine(site, port):
        run = live(site)
    failure = run.records["reference"].failure
    assert failure is not None
    assert re.search(rf"server: port {port} is held by pid \d+ \(python.*\), not by the engine", failure.summary)
    assert run.records["reference"].ready_seconds is None
    assert run.records["reference"].completions == ()
    same_when_replayed(site, run)


@contextlib.contextmanager
def foreign_engine(site: Site, port: int) -> Iterator[None]:
    """Another stand-in, which is up as soon as ours loads its weights."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        def loads() -> bool:
            logs = site.artifacts.glob("*/*/reference/head/engine.log")
            return any(b"Starting to load model" in log.read_bytes() for log in logs)

        until(loads, "ours loads its weights")
        command = [sys.executable, FAKE, "serve", "models/dense", "--port", str(port)]
        started.append(subprocess.Popen(command, env={**os.environ, "FAKE_ENGINE": "{}"}, stdout=subprocess.DEVNULL))

    thread = threading.Thread(target=start)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        for process in started:
            process.kill()
            process.wait()


def test_a_port_that_somebody_has_is_refused_before_anything_starts(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        site.write(text=quick().replace("launch:\n", f"launch:\n  port: {port}\n"))
        run = live(site)
    assert run.folder is None
    assert run.records == {}
    assert set(run.verdicts.values()) == {run.verdicts["reference::ready"]}
    assert f"refused: profile.yaml:10: port {port} is already taken by pid" in str(run.verdicts["reference::ready"])


def test_a_server_that_is_older_than_the_start_is_found_behind_a_proxy(site: Site) -> None:
    metrics = site.folder / "metrics.txt"
    metrics.write_text("process_start_time_seconds 1.7e9\n")
    site.write({"metrics": str(metrics)}, text=quick())
    run = live(site)
    failure = run.records["reference"].failure
    assert failure is not None
    assert failure.summary.startswith("another server answers, one that is older than this start")
    assert failure.cause is not None
    assert failure.cause.where == "GET /metrics"
    same_when_replayed(site, run)


def test_odd_metrics_are_no_defect_of_ours(site: Site) -> None:
    metrics = site.folder / "metrics.txt"
    metrics.write_bytes(
        b"vllm:cache_config_info{} NaN\nvllm:kv NaN\n\xff\xfe\x00{\nvllm:prefix_cache_hits_total +Inf\n"
    )
    site.write({"metrics": str(metrics)}, text=quick())
    run = live(site)
    assert run.records["reference"].failure is None
    assert schema_problems(run) == []
    same_when_replayed(site, run)


def test_manifest_holds_the_verdicts(site: Site) -> None:
    site.write({}, HALF, text=quick())
    run = live(site)
    assert run.folder is not None
    manifest = json.loads((run.folder / "run.json").read_text())
    assert manifest["starts"] == manifest["planned"] == ["reference", "restart-1"]
    assert manifest["verdicts"]["restart-1::kv"] == "failed"
    assert manifest["failed"] == {}
    assert manifest["interrupted"] is None


SLOW = {
    "slower after the restart": ({"token_seconds": 0.004}, {"token_seconds": 0.02}),
    "some requests of the workload fail": ({}, {"completion": [*["good"] * 13, *["error", "good"] * 10]}),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_workload_that_is_worse_is_red(site: Site, name: str) -> None:
    site.write(*SLOW[name])
    run = live(site)
    assert run.red()["restart-1::throughput"] == "failed"
    assert "reference::throughput" not in run.red()
    same_when_replayed(site, run)


def test_a_workload_that_was_not_measured_whole_is_not_green(site: Site) -> None:
    """Every request of a batch fails: nothing more is measured, and what was measured before is not enough."""
    site.write({}, {"completion": [*["good"] * 21, *["error"] * 4, "good"]})
    run = live(site)
    restart = run.records["restart-1"]
    assert restart.failure is None
    assert len(restart.throughput) < 7
    assert re.search(r"^throughput: all 4 requests failed: HTTP 500", restart.notes[0])
    assert run.red()["restart-1::throughput"] == "failed"
    same_when_replayed(site, run)


def test_a_command_that_leaves_its_engine_behind_is_no_start(site: Site) -> None:
    """A wrapper puts the engine into the background and ends with code 0: nobody would stop or watch that engine."""
    wrapper = site.folder / "wrapper.py"
    wrapper.write_text(
        "import subprocess, sys\n"
        "p = subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=subprocess.PIPE, stderr=1)\n"
        "for line in p.stdout:\n"
        "    sys.stdout.buffer.write(line)\n"
        "    sys.stdout.flush()\n"
        "    if b'Application startup complete' in line:\n"
        "        break\n"
    )
    site.write({"open_line": "x"}, text=quick().replace('["{python}", ', f'["{{python}}", "{wrapper}", "{{python}}", '))
    run = live(site)
    failure = run.records["reference"].failure
    assert failure is not None
    assert failure.kind == "ended"
    assert "exit code 0" in failure.summary
    assert all(left.released for left in run.records["reference"].cleanup or ())
    same_when_replayed(site, run)
