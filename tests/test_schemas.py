"""The schemas that are shipped: right, complete, printed by the command, and in step with the code and the docs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pytest_startup import record as r
from pytest_startup import record_json as j
from pytest_startup.profile.names import CHECKS
from pytest_startup.profile.page import tables
from pytest_startup.schema import FOLDER, main, names

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = r.Evidence("log", "head/engine.log", "GPU KV cache size: 100 tokens", 7, "head", "TP0", 1.5)
FULL = r.StartRecord(
    profile="p",
    name="restart-1",
    kind="process",
    population="process",
    started_at="2026-11-29T15:00:00Z",
    argv=("vllm", "serve"),
    ready=True,
    health_seconds=1.0,
    ready_seconds=1.5,
    wall_seconds=2.0,
    exit_code=-9,
    failure=r.Failure(
        "weights", "hang", "stopped", EVIDENCE, "TP0", "head", 41.0, ("more ranks",), ("kv.tokens",), (EVIDENCE,)
    ),
    facts=(
        r.Fact("kv.tokens", 100, EVIDENCE, "tokens", "TP0", "head", "0", 1, {"role": "model", "total": 3}),
        r.Fact("autotune.started", None, r.Evidence("log", "engine.log")),
    ),
    phases=(r.PhaseSpan("weights", "TP0", "head", 1, 2, 0.5, 1.0, 0.5, "received"),),
    completions=(
        r.Completion("ready", "x", 200, "y", "z", "stop", "m", 1, 2, 0.1, 2.0, ("a",), (-0.5,), "f", True, 8, "cut"),
    ),
    throughput=(r.ThroughputSample(8, 0, 16, 0, 1024, 2.5),),
    caches_before=(r.CacheTree("compile-cache", "/c", False),),
    caches_after=(r.CacheTree("compile-cache", "/c", True, "head", (r.CacheFile("a", 1, 2, "0" * 64),)),),
    cleanup=(r.Leftover("pid", "12", True, 0.5, "head"),),
    notes=("page cache not dropped",),
    log_bytes={"head": 4711},
    outside=r.Failure("weights", "ended", "the engine ended before it was ready", node="head"),
)


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((FOLDER / f"{name}.schema.json").read_text("utf-8")))


@pytest.mark.parametrize("name", names())
def test_each_is_a_schema_and_stands_in_the_project_root_too(name: str) -> None:
    Draft202012Validator.check_schema(validator(name).schema)
    link = ROOT / "schemas" / f"{name}.schema.json"
    assert link.is_symlink()
    assert link.resolve() == (FOLDER / f"{name}.schema.json").resolve()


def test_a_full_record_is_valid_and_comes_back_equal() -> None:
    data = json.loads(json.dumps(j.record_to_json(FULL)))
    assert list(validator("record").iter_errors(data)) == []
    assert j.record_from_json(data) == FULL


def test_the_smallest_record_is_valid() -> None:
    small = r.StartRecord("p", "reference", "process", "process", "2026-11-29T15:00:00Z")
    assert list(validator("record").iter_errors(json.loads(json.dumps(j.record_to_json(small))))) == []


def test_the_full_record_leaves_nothing_out() -> None:
    """Every field of every dataclass stands in the full record, so that its validity says something."""
    data: Any = j.record_to_json(FULL)
    for kind, shown in [
        (r.StartRecord, data),
        (r.Failure, data["failure"]),
        (r.Evidence, data["failure"]["cause"]),
        (r.PhaseSpan, data["phases"][0]),
        (r.Completion, data["completions"][0]),
        (r.ThroughputSample, data["throughput"][0]),
        (r.CacheTree, data["caches_after"][0]),
        (r.CacheFile, data["caches_after"][0]["files"][0]),
        (r.Leftover, data["cleanup"][0]),
    ]:
        assert {f.name for f in dataclasses.fields(kind)} == set(shown), kind.__name__


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2),
        (("extra",), 1),
        (("ready",), "yes"),
        (("facts", 0, "source"), "rumour"),
        (("facts", 0, "fact"), "KV tokens"),
        (("facts", 0, "line"), 0),
        (("phases", 0, "phase"), "lunch"),
        (("completions", 0, "status"), "200"),
        (("caches_after", 0, "files", 0, "sha256"), "xyz"),
    ],
)
def test_a_wrong_record_is_refused(path: tuple[Any, ...], value: Any) -> None:
    data: Any = json.loads(json.dumps(j.record_to_json(FULL)))
    part = data
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    assert list(validator("record").iter_errors(data))


def test_the_command_prints_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "pytest-startup profile"
    assert main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == names()


def test_the_command_names_the_nearest_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recrod"]) == 2
    assert capsys.readouterr().err == (
        f"pytest-startup schema: no schema 'recrod'; did you mean record? (known: {', '.join(names())})\n"
    )
    assert main(["record", "--markdown"]) == 2
    assert capsys.readouterr().err == "pytest-startup schema: --markdown is for the schema profile only\n"


def test_from_the_outside() -> None:
    code = "import sys; from pytest_startup.cli import main; sys.exit(main(['schema', 'record']))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(out.stdout)["title"] == "pytest-startup start record"


def test_the_docs_hold_every_key_as_the_schema_has_it() -> None:
    page = (ROOT / "docs" / "profile.md").read_text("utf-8")
    assert page.endswith(tables()), "write it again: pytest-startup schema profile --markdown"
    assert f"Checks that can be waived: {', '.join(CHECKS)}" in page.replace("\n", " ")
