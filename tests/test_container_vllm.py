"""The real engine in a container: cold, same and fresh container, with and without a cache volume."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from helpers_container_vllm import LONG, heavy, need_vllm, profile_text
from helpers_docker import gate, gate_env, need_engine

from pytest_startup.record import StartRecord
from pytest_startup.record_json import record_from_json


@pytest.fixture(scope="session")
def built():
    """The real engine, built where the network is: not inside the container engine's."""
    need_engine()
    need_vllm()


@pytest.fixture
def site(built, engine, tmp_path):  # noqa: ARG001 - built comes first
    folder = tmp_path / "site"
    folder.mkdir()
    yield folder
    assert engine.labelled() == []


def run(site: Path, text: str) -> tuple[int, dict[str, str], str]:
    """Exit code, outcome by item (``restart-1::artifacts``), and what was printed."""
    (site / "profile.yaml").write_text(text)
    argv = gate(site, f"--junitxml={site}/junit.xml")
    done = subprocess.run(argv, cwd=site, env=gate_env(), capture_output=True, text=True, check=False)
    assert (site / "junit.xml").exists(), done.stdout + done.stderr
    outcomes = {}
    for case in ElementTree.parse(site / "junit.xml").getroot().iter("testcase"):  # noqa: S314 - written by this run
        bad = case.find("failure") is not None or case.find("error") is not None
        start = case.get("classname", "").rpartition(".")[2]
        outcomes[f"{start}::{case.get('name')}"] = "red" if bad else "green"
    return done.returncode, outcomes, done.stdout


def record(site: Path, start: str) -> StartRecord:
    (path,) = site.glob(f".startup/*/*/{start}/record.json")
    return record_from_json(json.loads(path.read_text()))


def values(start: StartRecord, name: str) -> list:
    return [fact.value for fact in start.named(name)]


def test_restarts_with_a_cache_volume(engine, site):
    steps = ["{kind: same-container}", "{kind: fresh-container, drop_page_cache: true}"]
    code, outcomes, told = run(site, profile_text(engine.image, engine.url, cache="vllm-cache", restarts=steps))
    assert (code, [name for name, what in outcomes.items() if what == "red"]) == (0, []), told
    starts = [record(site, name) for name in ("reference", "restart-1", "restart-2")]
    ids = [values(start, "container.id")[0] for start in starts]
    assert ids[0] == ids[1] != ids[2]
    assert len({values(start, "container.started_at")[0] for start in starts}) == 3
    assert {values(start, "container.image")[0] for start in starts} == {engine.image}
    assert [bool(values(start, "compile.cache_loaded")) for start in starts] == [False, True, True]
    assert all(start.caches_after[0].files for start in starts)


@LONG
def test_a_fresh_container_without_a_cache_volume_is_found_out(engine, site):
    text = profile_text(engine.image, engine.url, cache=None, restarts=["{kind: fresh-container}"])
    code, outcomes, told = run(site, text)
    assert code == 1, told
    assert outcomes["reference::artifacts"] == "green"
    assert outcomes["restart-1::artifacts"] == "red"
    assert [name for name, what in outcomes.items() if what == "red"] == ["restart-1::artifacts"], told
    assert values(record(site, "restart-1"), "compile.cache_written")


@LONG
def test_a_memory_limit_that_is_hit_while_weights_are_loaded(engine, site):
    """The kernel kills a worker; PID 1 of the container is another process, and ends on its own account."""
    text = profile_text(engine.image, engine.url, cache="vllm-cache", restarts=[], model=heavy(site, 6), memory="3g")
    code, _, told = run(site, text)
    assert code == 1, told
    failure = record(site, "reference").failure
    assert failure is not None
    assert (failure.kind, failure.phase) == ("out-of-host-memory", "weights"), failure
    words = " ".join(told.split())
    assert "OOMKilled" in words or "out-of-memory killer" in words, told
    assert "a loader that streams or maps the checkpoint" in failure.helps
