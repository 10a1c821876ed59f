"""The live gate beside its verdicts: engines for the user's own tests, refusals, what is kept, told and written."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers_launch import gone, isolate, until
from helpers_live import Outside, Site, live, quick, replayed
from helpers_nvml import Device, FakeNvml

from pytest_startup import planning
from pytest_startup.artifacts import read_record
from pytest_startup.clean import main as clean
from pytest_startup.gate import StartFailed
from pytest_startup.launch import locks
from pytest_startup.launch.base import LaunchError
from pytest_startup.observe.gpus import Nvml
from pytest_startup.observe.http import Http
from pytest_startup.profile.expect import Prompt

QUESTION = Prompt("The capital of France is", max_tokens=4)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    isolate(tmp_path, monkeypatch)
    return Site(tmp_path)


def pid_of(record: Any) -> int:
    return int(next(f.value for f in record.facts if f.name == "process.pid"))


def test_nothing_is_touched_before_it_is_asked_for(site: Site) -> None:
    site.write(text=quick())
    with site.gate() as gate:
        assert gate.start_names() == ["reference", "restart-1"]
        assert gate.folder is None
        assert gate.notes() == []
    assert not site.artifacts.exists()


def test_answers_that_are_mixed_up_when_several_are_asked_at_once(site: Site) -> None:
    """Each of them a good text, but to another prompt."""
    text = quick().replace("contains: Paris}}", "contains: Paris}}, {{prompt: Name some colours}}")
    site.write({}, {"crowded": "crossed"}, text=text)
    run = live(site)
    always = ("backend", "autotune", "graphs")  # this engine's log does not show them
    red = {k: v for k, v in run.red().items() if k.partition("::")[2] not in always}
    assert red == {"restart-1::ready": "failed"}
    verdict = run.verdicts["restart-1::ready"]
    assert not isinstance(verdict, str)
    assert "got the answer to another prompt" in verdict.findings[0].summary
    assert run.folder is not None
    assert replayed(site, run.folder).verdicts == run.verdicts


def test_the_running_engine_is_that_of_the_last_start(site: Site) -> None:
    site.write(text=quick())
    with site.gate() as gate:
        first = gate.record("reference")
        assert gate.engine().facts()[1].value == pid_of(first)
        answer = gate.complete(QUESTION)
        assert (answer.status, answer.purpose, answer.text[:6]) == (200, "user", " Paris")
        assert list(gate.records()) == ["reference"]


def test_an_engine_that_was_stopped_is_started_once_more(site: Site) -> None:
    site.write(text=quick())
    with site.gate() as gate:
        gate.record("reference")
        gate.verdict("reference", "cleanup")
        assert gate.engine().exited() is None
        assert gate.engine().base_url == gate.engine().base_url
        assert list(gate.records()) == ["reference", "extra-1"]
        assert gate.start_names() == ["reference", "restart-1"]
        pid = pid_of(gate.records()["extra-1"])
    assert gone(pid)
    assert gate.records()["extra-1"].cleanup


def test_restart_gives_the_records_before_and_after(site: Site) -> None:
    site.write(text=quick())
    with site.gate() as gate:
        before, after = gate.restart()
        assert (before.name, after.name) == ("extra-1", "extra-2")
        assert before.cleanup is None, "it was taken while it ran"
        assert gate.records()["extra-1"].cleanup
        assert pid_of(before) != pid_of(after)
        assert after.kind == "process"


def test_a_kind_that_this_engine_has_not_is_refused_before_anything_starts(site: Site) -> None:
    site.write(text=quick())
    with site.gate() as gate:
        with pytest.raises(LaunchError) as refused:
            gate.restart("same-container")
        assert str(refused.value) == "restart('same-container'): this profile's engine can be restarted as process"
        assert gate.records() == {}


def test_a_kind_that_no_engine_has_is_refused_for_a_launcher_of_a_hook_too(site: Site) -> None:
    site.write(text=quick())
    profile = site.profile()
    custom = replace(profile, launch=replace(profile.launch, process=None, custom="mine"))
    with pytest.raises(LaunchError) as refused:
        planning.extra_step(custom, "proces")
    assert str(refused.value) == (
        "restart('proces'): this profile's engine can be restarted as process or same-container or fresh-container"
    )
    assert planning.extra_step(custom, "same-container").kind == "same-container"


def test_a_failed_start_is_not_made_again_for_each_test(site: Site) -> None:
    site.write({"exit": {"at": "start", "code": 3}}, text=quick())
    with site.gate() as gate:
        for _ in range(2):
            with pytest.raises(StartFailed) as failed:
                gate.engine()
            assert failed.value.record.name == "extra-1"
        with pytest.raises(StartFailed):
            gate.restart()
        with pytest.raises(StartFailed):
            gate.complete(QUESTION)
        assert list(gate.records()) == ["extra-1"]


def test_keep_leaves_the_last_start_up_and_stops_those_before(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.write(text=quick())
    code, out = Outside(site, "--startup-keep", "-k", "cleanup").end()
    assert code == 1, out
    kept = re.search(r"restart-1: left running at (\S+) as asked; end it with: pytest-startup clean --yes", out)
    assert kept, out
    (folder,) = site.artifacts.glob("*/*")
    manifest = json.loads((folder / "run.json").read_text())
    assert manifest["verdicts"] == {"reference::cleanup": "passed", "restart-1::cleanup": "not observable"}
    record = read_record(folder, "restart-1")
    with Http(kept[1]) as http:
        assert http.get("/health").ok
    assert not gone(pid_of(record))
    assert clean(["--yes"]) == 0
    assert str(pid_of(record)) in capsys.readouterr().out
    until(lambda: gone(pid_of(record)), "the kept engine is gone")


def test_locks_are_given_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_held", {})
    site.write(text=quick())
    with site.gate() as gate:
        gate.record("restart-1")
        port = gate.engine().base_url.rpartition(":")[2]
        assert [path.name for path in locks._held] == [f"port-{port}.lock"]
        assert [held.count for held in locks._held.values()] == [1]
    assert locks._held == {}


def test_close_twice_and_without_a_start(site: Site) -> None:
    site.write(text=quick())
    with site.gate() as gate:
        gate.close()
    assert gate.folder is None


def test_all_reasons_not_to_start_stand_in_one_refusal(site: Site) -> None:
    text = (
        quick()
        .replace("launch:\n", "launch:\n  checkpoint: [nowhere]\n")
        .replace("name:", "host: {{page_size: 7}}\nname:")
    )
    site.write(text=text)
    with site.gate() as gate:
        reasons = gate.preflight()
        with pytest.raises(LaunchError) as refused:
            gate.record("reference")
    assert len(reasons) == 2
    assert all(reason in str(refused.value) for reason in reasons)
    assert reasons[0].startswith("profile.yaml:2: ")
    assert reasons[1].startswith("profile.yaml:11: ")
    assert not site.artifacts.exists()


def test_warnings_of_the_profile_are_notes(site: Site) -> None:
    site.write(text=quick().replace("restarts: [{{kind: process}}]\n", ""))
    warnings = site.profile().warnings
    assert warnings
    run = live(site)
    assert run.notes == warnings
    assert run.folder is not None
    assert replayed(site, run.folder).notes == warnings


def test_a_wiped_cache_is_told_noted_and_labelled(site: Site) -> None:
    site.write(text=quick().replace("{{kind: process}}", "{{kind: process, wipe: [compile-cache]}}"))
    run = live(site)
    (note,) = run.records["restart-1"].notes
    assert re.fullmatch(r"cache compile-cache wiped: 1 files, .* MiB \(.*\)", note)
    assert f"restart-1: {note}" in site.told
    assert run.records["restart-1"].population == "process+wiped:compile-cache"


def test_a_folder_that_must_not_be_wiped_refuses_the_start(site: Site) -> None:
    text = quick().replace("{{kind: process}}", "{{kind: process, wipe: [compile-cache]}}")
    site.write(text=text)
    (site.folder / "real").mkdir()
    with site.gate() as gate:
        gate.record("reference")
        (site.folder / "cache").rename(site.folder / "aside")
        (site.folder / "cache").symlink_to(site.folder / "real")
        with pytest.raises(LaunchError, match=r"nothing is wiped: cache compile-cache: .* is a link"):
            gate.record("restart-1")


@pytest.mark.parametrize("blocked", ["a file", "a file below"])
def test_a_folder_that_can_not_be_made_is_said_without_a_traceback(site: Site, blocked: str) -> None:
    site.write(text=quick())
    if blocked == "a file":
        site.artifacts.write_text("")
    else:
        site.artifacts.mkdir()
        (site.artifacts / "stand-in").write_text("")
    with site.gate() as gate, pytest.raises(LaunchError) as refused:
        gate.record("reference")
    assert "can't be made: " in str(refused.value)
    assert str(refused.value).endswith("choose another with --startup-artifacts")


def test_a_record_that_can_not_be_written_stops_the_engine(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the record is due; ``/dev/full`` stands for it."""
    site.write(text=quick())
    started: list[int] = []

    def full(self: Path, *_: Any, **__: Any) -> int:
        if "record.json" in self.name:
            raise OSError(28, "No space left on device")
        return plain(self, *_, **__)

    plain = Path.write_text
    monkeypatch.setattr(Path, "write_text", full)
    with site.gate() as gate:
        with pytest.raises(LaunchError) as refused:
            gate.record("reference")
        running = gate._current.running if gate._current else None
        assert running is not None
        started.append(int(running.facts()[1].value))  # type: ignore[arg-type]
        assert gone(started[0])
    assert re.search(r"record\.json can't be written: No space left on device; make room", str(refused.value))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("./models/tinny", "profile.yaml:6: engine.model: ./models/tinny is not there; did you mean 'tiny'?"),
        ("./models/tiny", None),
        ("models/dense", None),  # a name of a hub
        ("/models/tiny", None),  # may be inside of what a script starts
    ],
)
def test_a_model_beside_the_profile_must_be_there(site: Site, model: str, told: str | None) -> None:
    (site.folder / "models" / "tiny").mkdir(parents=True)
    profile = site.write(text=quick().replace("model: models/dense", f"model: {model}"))
    assert profile.engine.model.endswith(model.lstrip("."))
    with site.gate() as gate:
        assert list(gate.preflight()) == ([told] if told else [])


def test_usual_times_come_from_the_reference(site: Site) -> None:
    site.write({}, {"hang": "Starting to load model"}, text=quick(ready="3s"))
    run = live(site)
    failure = run.records["restart-1"].failure
    assert failure is not None
    reference = run.records["reference"].ready_seconds
    assert f"the deadline is 3 s; it took {reference:.1f} s on the reference start" in failure.summary


def test_all_gpus_become_those_of_the_host(site: Site) -> None:
    profile = site.write(text=quick().replace("launch:\n", "launch:\n  gpus: all\n"))
    assert profile.launch.gpus == ("all",)
    seen = planning.with_gpus(profile, lambda: Nvml(module=FakeNvml(Device(), Device())))
    assert seen.launch.gpus == ("0", "1")
    with site.gate() as gate:
        (reason,) = gate.preflight()
        with pytest.raises(LaunchError) as refused:
            gate.record("reference")
    assert str(refused.value) == reason
    assert reason.startswith("profile.yaml:10: all GPUs of this host are asked for, and none can be seen: no NVML")


def test_secrets_are_nowhere(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither below the artifacts folder nor in what is told, and the checks judge the same without them."""
    secret, key = "s3cr3t-value-of-a-token", "k3y-for-the-api-4711"
    site.environ = {"MY_TOKEN": secret, "MY_KEY": key}
    text = (
        quick()
        .replace("args: [", 'args: [--api-key, "${{MY_KEY}}", ')
        .replace("env: {{", 'env: {{HF_TOKEN: "${{MY_TOKEN}}", ')
    )
    leak = f"INFO token is {secret}, key {key}"
    site.write({"insert": {"Warming up done": leak}, "version": f"0.31.0-{secret}"}, text=text)
    run = live(site)
    assert run.folder is not None
    told = "\n".join([*site.told, *run.notes, capfd.readouterr().out, repr(run.verdicts), repr(run.records)])
    assert secret not in told
    assert key not in told
    files = [f for f in run.folder.rglob("*") if f.is_file()]
    assert {"run.json", "profile.yaml", "profile.resolved.json", "record.json", "engine.log", "version.json"} <= {
        f.name for f in files
    }
    assert [f for f in files if secret.encode() in f.read_bytes() or key.encode() in f.read_bytes()] == []
    log = (run.folder / "reference/head/engine.log").read_text()
    assert "INFO token is [redacted], key [redacted]" in log
    identity = run.verdicts["reference::identity"]
    assert [f.summary for f in identity.findings] == ["engine 0.31.0-[redacted] runs, 0.31.0 is pinned"]  # type: ignore[union-attr]
    again = replayed(site, run.folder)
    assert again.verdicts == run.verdicts
    assert again.records == run.records


def test_the_engine_is_asked_with_its_own_key(site: Site) -> None:
    from pytest_startup.asking import api_key

    site.environ = {"MY_KEY": "k3y-for-the-api-4711"}
    for args in ('--api-key, "${{MY_KEY}}"', '"--api-key=${{MY_KEY}}"'):
        profile = site.write(text=quick().replace("args: [", f"args: [{args}, "))
        assert api_key(profile) == "k3y-for-the-api-4711"
    profile = site.write(text=quick().replace("env: {{", 'env: {{VLLM_API_KEY: "${{MY_KEY}}", '))
    assert api_key(profile) == "k3y-for-the-api-4711"
    assert api_key(site.write(text=quick())) is None


def test_two_runs_at_once_have_folders_and_ports_of_their_own(site: Site) -> None:
    site.write(text=quick())
    with site.gate() as one, site.gate() as other:
        assert one.record("reference").failure is None
        assert other.record("reference").failure is None
        assert one.folder != other.folder
        assert one.engine().base_url != other.engine().base_url
    manifests = [json.loads(f.read_text()) for f in site.artifacts.glob("*/*/run.json")]
    assert len(manifests) == 2
    assert len({m["run"] for m in manifests}) == 2


def test_progress_of_a_long_start_and_of_its_workload(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_startup.stages.TELL", 0.2)
    site.write({"pauses": {"Starting to load model": 0.6}, "slow": 0.4}, text=quick())
    live(site)
    text = "\n".join(site.told)
    assert re.search(r"^reference: [a-z-]+, \d+ s; \d+ s since launch$", text, re.MULTILINE)
    assert re.search(r"^reference: first completions, \d+ s$", text, re.MULTILINE)
    assert re.search(r"^restart-1: [a-z-]+, \d+ s( \(reference \d+ s\))?; \d+ s since launch$", text, re.MULTILINE)
    assert os.linesep not in site.told[0]
