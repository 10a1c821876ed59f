"""The baseline: read with file and line, compared or refused, proposed by category, never overwritten."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers_records import (
    FAILED,
    NOT_OBSERVABLE,
    PASSED,
    batches,
    fact,
    profile,
    record,
    reference,
    tree,
)

from pytest_startup.baseline import Baseline, BaselineError, Population, cache_changes, cache_hashes, identity, mismatch
from pytest_startup.baseline_file import from_json, path_of, proposal_path, read, schema, to_json, write_proposal
from pytest_startup.baseline_propose import Proposal, propose, values_of
from pytest_startup.checks.base import Finding, Outcome, Verdict
from pytest_startup.judging import Judge
from pytest_startup.options import Options
from pytest_startup.profile.model import Engine, Profile, Waiver
from pytest_startup.record import Evidence, PhaseSpan, StartRecord

TODAY = datetime.date(2026, 11, 29)

FILE = """\
{
 "schema": 1,
 "profile": "p",
 "identity": {"engine.version": "0.31.0"},
 "populations": {
  "process": {
   "values": {"kv.tokens": 1000},
   "samples": {"ready_seconds": [10.5, 11]},
   "caches": {"compile-cache": {"a/model": "HASH"}}
  }
 }
}
""".replace("HASH", "ab" * 32)


def written(folder: Path, text: str = FILE) -> Path:
    path = folder / "p.baseline.json"
    path.write_text(text)
    return path


def test_a_checkout_elsewhere_is_the_same_engine() -> None:
    def at(folder: str) -> Profile:
        args = ("--lora-modules", f"a={folder}/a", "--chat-template", "/srv/t.jinja")
        return profile(path=Path(folder, "p.yaml"), engine=Engine("vllm", f"{folder}/models/tiny", args=args))

    here, there = (identity(at(folder), ()) for folder in ("/home/me/repo", "/builds/7/repo"))
    assert here == there
    assert here["engine.model"] == "${profile_dir}/models/tiny"
    assert here["engine.args"] == ["--lora-modules", "a=${profile_dir}/a", "--chat-template", "/srv/t.jinja"]


def test_read(tmp_path: Path) -> None:
    assert read(written(tmp_path), "p") == Baseline(
        "p",
        {"engine.version": "0.31.0"},
        {
            "process": Population(
                {"kv.tokens": 1000}, {"ready_seconds": (10.5, 11.0)}, {"compile-cache": {"a/model": "ab" * 32}}
            )
        },
    )


def test_a_baseline_lies_beside_its_profile(tmp_path: Path) -> None:
    beside = profile(path=tmp_path / "site.yaml")
    assert path_of(beside) == written(tmp_path)


WRONG = {
    "a value that nothing reads": (
        FILE.replace('"kv.tokens"', '"kv.token"'),
        "p.baseline.json:7: populations.process.values.kv.token: unknown value; did you mean 'kv.tokens'?",
    ),
    "a value of another type": (
        FILE.replace("1000}", '"1,000"}'),
        'p.baseline.json:7: populations.process.values.kv.tokens: expected a number, found "1,000"',
    ),
    "a sample that nothing reads": (
        FILE.replace("ready_seconds", "tokens_per_second.8"),
        "unknown sample; did you mean 'tokens_per_second.c1'?",
    ),
    "an identity that nothing reads": (
        FILE.replace("engine.version", "engine.versions"),
        "p.baseline.json:4: identity.engine.versions: unknown fact; did you mean 'engine.version'?",
    ),
    "not JSON": (FILE.replace('"process": {', '"process" {'), "p.baseline.json:6: not JSON: Expecting ':'"),
    "cut off": (FILE[:60], "p.baseline.json:4: not JSON"),
    "a key twice": (
        FILE.replace('"values"', '"samples"'),
        "p.baseline.json:8: the key samples stands twice in one object; remove one",
    ),
    "an unknown key": (
        FILE.replace('"values"', '"value"'),
        "p.baseline.json:7: populations.process.value: unknown key; did you mean values?",
    ),
    "a text for a number": (
        FILE.replace("[10.5, 11]", '["10.5"]'),
        "p.baseline.json:8: populations.process.samples.ready_seconds.0: expected a number of at least 0; found",
    ),
    "no hash": (FILE.replace("ab" * 32, "abc"), "expected a sha256 of 64 lower-case hexadecimal digits"),
    "another version": (FILE.replace('"schema": 1', '"schema": 2'), "p.baseline.json:2: schema: expected 1"),
    "another profile": (FILE.replace('"p"', '"q"'), "p.baseline.json:3: profile: expected p, the name of the profile"),
    "a list": ("[]", "p.baseline.json:1: expected a mapping"),
    "nothing": ("", "p.baseline.json:1: not JSON"),
    "a missing part": (FILE.replace('"identity": {"engine.version": "0.31.0"},', ""), "identity is missing"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_messages(case: tuple[str, str], tmp_path: Path) -> None:
    text, message = case
    with pytest.raises(BaselineError) as refused:
        read(written(tmp_path, text), "p")
    assert message in str(refused.value)


def test_all_errors_of_a_file_at_once(tmp_path: Path) -> None:
    text = FILE.replace('"values"', '"value"').replace("[10.5, 11]", "[]")
    with pytest.raises(BaselineError) as refused:
        read(written(tmp_path, text))
    assert len(str(refused.value).splitlines()) == 2


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="cannot be read: Is a directory"):
        read(tmp_path)
    (tmp_path / "p.baseline.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(BaselineError, match="1: not JSON"):
        read(tmp_path / "p.baseline.json")


def notes(folder: Path, mode: str = "check", **fields: Any) -> list[str]:
    beside = profile(path=folder / "site.yaml", **fields)
    return Judge(beside, Options(folder, baseline=mode)).notes()


def test_what_was_not_compared_with_a_baseline_is_said(tmp_path: Path) -> None:
    asked = {"origin": {"expect.kv.tokens": 7}}
    assert notes(tmp_path) == []
    assert notes(tmp_path, "propose", **asked) == []
    assert notes(tmp_path, **asked) == [
        "there is no p.baseline.json: restarts were compared with the reference start alone"
    ]
    path = written(tmp_path)
    assert notes(tmp_path) == [
        "p.baseline.json holds process, and not reference: compared with the reference start alone"
    ]
    assert notes(tmp_path, "ignore") == ["p.baseline.json was ignored as asked: nothing was compared with it"]
    path.rename(tmp_path / "P.baseline.json")
    assert notes(tmp_path) == [
        "there is no p.baseline.json (beside the profile: P.baseline.json): restarts were compared with the reference"
        " start alone"
    ]
    path.symlink_to("gone.json")
    with pytest.raises(BaselineError, match="cannot be read"):
        notes(tmp_path)


# --- identity ---------------------------------------------------------------------------------------------------------


def started(*facts: Any, **fields: Any) -> StartRecord:
    return record(fact("engine.version", "0.31.0"), *facts, **fields)


PINS = {"engine.kind": "vllm", "engine.model": "org/model", "engine.args": list[str]()}

IDENTITIES = {
    "the same": ({"engine.version": "0.31.0", "engine.model": "org/model"}, ()),
    "another version": (
        {"engine.version": "0.30.0"},
        ("engine.version: accepted for 0.30.0, this start has 0.31.0",),
    ),
    "other arguments": (
        {"engine.args": ["--max-model-len", "10"]},
        ("engine.args: accepted for --max-model-len 10, this start has none",),
    ),
    "a GPU that is not seen now": (
        {"gpu.name": ["NVIDIA H200"]},
        ("gpu.name: accepted for NVIDIA H200, not seen on this start",),
    ),
    "another driver is no reason": ({"gpu.driver": "570.1"}, ()),
}


@pytest.mark.parametrize("case", IDENTITIES.values(), ids=IDENTITIES)
def test_mismatch(case: tuple[dict[str, Any], tuple[str, ...]]) -> None:
    accepted, reasons = case
    assert mismatch(Baseline("p", {**PINS, **accepted}), profile(), started()) == reasons


def test_a_failed_start_shows_less_and_is_not_blamed_for_it() -> None:
    assert mismatch(Baseline("p", {**PINS, "gpu.name": ["X"]}), profile(), started(ready=False)) == ()


def test_a_baseline_that_does_not_say_for_what_it_was_accepted_is_for_nothing() -> None:
    pinned = profile(engine=Engine("vllm", "org/model", revision="abc", args=("--x",)))
    assert mismatch(Baseline("p", {"engine.kind": "vllm"}), pinned, started()) == (
        "engine.model: accepted without any, this start has org/model",
        "engine.revision: accepted without any, this start has abc",
        "engine.args: accepted without any, this start has --x",
    )


# --- caches -----------------------------------------------------------------------------------------------------------


def test_cache_changes_name_every_file() -> None:
    before = record(caches_before=(tree({"a": "1", "b": "1", "c": "1", "d": 5}), tree({"x": "1"}, name="unwatched")))
    accepted = Population(caches=cache_hashes(profile(), before))
    assert list(accepted.caches) == ["compile-cache"]
    assert set(accepted.caches["compile-cache"]) == {"a", "b", "c"}  # d was not hashed
    now = record(caches_before=(tree({"a": "1", "b": "2", "e": "1", "d": 6}),))
    assert cache_changes(accepted, now) == (["compile-cache/e"], ["compile-cache/c"], ["compile-cache/b"])


def test_a_cache_that_is_not_watched_now_is_not_compared() -> None:
    assert cache_changes(Population(caches={"compile-cache": {"a": "ab" * 32}}), record()) == ([], [], [])


# --- proposals --------------------------------------------------------------------------------------------------------

GREEN = Verdict("kv", PASSED, (), (Evidence("log", "x", "y"),))


def red(outcome: Outcome, check: str = "graphs") -> Verdict:
    return Verdict(check, outcome, (Finding("s", "e", ("o",)),))


COLD = reference(
    fact("engine.version", "0.31.0"), fact("kv.tokens", 900), fact("compile.cache_written", "x"), ready_seconds=50.0
)
WARM = started(
    fact("kv.tokens", 1000),
    fact("backend.attention", "FLASH_ATTN"),
    fact("graphs.captured", {"kind": "FULL", "done": 11, "total": 11}, "TP0"),
    fact("weights.memory", 1.26, "TP0"),
    fact("autotune.loaded", 42, "TP0"),
    ready_seconds=20.0,
    phases=(PhaseSpan("weights", seconds=3.0), PhaseSpan("weights", seconds=4.0)),
    throughput=batches(100, 110),
    caches_before=(tree({"a": "1"}),),
)


def proposed(old: Baseline | None = None, of: Profile | None = None, **more: Any) -> Proposal:
    given: dict[str, Any] = {"environ": {}, "verdicts": [("reference", GREEN), ("restart-1", GREEN)]}
    given.update(more)
    return propose(of or profile(), [COLD, WARM], given["verdicts"], old, given["environ"], TODAY)


def test_first_proposal_is_all_new() -> None:
    proposal = proposed()
    assert proposal.baseline is not None
    assert {c.category for c in proposal.changes} == {"new"}
    assert set(proposal.baseline.populations) == {"reference", "process"}
    accepted = proposal.baseline.populations["process"]
    assert accepted.values == {
        "kv.tokens": 1000,
        "graphs.captured": {"FULL": 11},
        "weights.gib_max": 1.26,
        "backend.attention": ["FLASH_ATTN"],
        "autotune.records": {"TP0": 42},
        "ranks": ["TP0"],
    }
    assert accepted.samples == {
        "ready_seconds": (20.0,),
        "phase.weights": (4.0,),
        "tokens_per_second.c8": (100.0, 110.0),
    }
    assert list(accepted.caches) == ["compile-cache"]
    assert "new        process: kv.tokens: 1,000" in proposal.lines()


def test_a_proposal_is_valid_and_reads_back(tmp_path: Path) -> None:
    proposal = proposed()
    assert proposal.baseline is not None
    beside = profile(path=tmp_path / "p.yaml")
    path = write_proposal(beside, proposal.baseline)
    assert path == proposal_path(beside)
    assert path.name == "p.baseline.new.json"
    jsonschema.validate(json.loads(path.read_text()), dict(schema()))
    assert read(path, "p") == proposal.baseline
    assert from_json(to_json(proposal.baseline)) == proposal.baseline
    assert not path_of(beside).exists()
    assert [p.name for p in tmp_path.iterdir()] == ["p.baseline.new.json"]


def test_an_unwritable_folder(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="cannot be written"):
        write_proposal(profile(path=tmp_path / "gone" / "p.yaml"), Baseline("p"))


def test_changes_by_category() -> None:
    first = proposed().baseline
    assert first is not None
    process = first.populations["process"]
    old = Baseline(
        "p",
        {**first.identity, "engine.version": "0.30.0"},
        {
            "process": Population(
                {
                    **process.values,
                    "kv.tokens": 1100,
                    "weights.gib_max": 2.0,
                    "backend.attention": ["FLASHINFER"],
                    "gone": 1,
                },
                {**process.samples, "ready_seconds": (10.0,), "tokens_per_second.c8": (104.0,)},
                {"compile-cache": {"a": "cd" * 32, "b": "cd" * 32}},
            ),
            "same-container": Population({"kv.tokens": 1}),
        },
    )
    lines = proposed(old).lines()
    assert "identity   engine.version: 0.30.0 → 0.31.0" in lines
    assert "identity   process: backend.attention: FLASHINFER → FLASH_ATTN" in lines
    assert "identity   process: cache compile-cache: 2 files (1 gone, 1 changed, 0 new) → 1 files" in lines
    assert "loosened   process: kv.tokens: 1,100 → 1,000" in lines
    assert "loosened   process: ready_seconds: 10 → 20" in lines
    assert "loosened   process: gone: 1 → dropped" in lines
    assert "loosened   population: same-container → dropped" in lines
    assert "tightened  process: weights.gib_max: 2 → 1.26" in lines
    assert not any("tokens_per_second" in line for line in lines)  # 105 against 104 is noise
    assert [line.split()[0] for line in lines] == sorted(
        (line.split()[0] for line in lines), key=["identity", "loosened", "tightened", "new"].index
    )


def test_what_changed_on_purpose_is_judged_without_the_baseline_that_it_replaces(tmp_path: Path) -> None:
    """Else identity, and every value that got worse, would be red, and no baseline could ever be proposed again."""
    written(tmp_path, FILE.replace('"0.31.0"', '"0.30.0"').replace("1000", "1100"))
    judge = Judge(profile(path=tmp_path / "site.yaml"), Options(tmp_path, baseline="propose"))
    assert all(judge.judge(check, None, WARM).outcome is PASSED for check in ("identity", "kv"))
    alone = "p.baseline.json is to be replaced: restarts were compared with the reference start alone"
    assert judge.notes() == [alone]
    lines = judge.propose([WARM], {})
    assert "identity   engine.version: 0.30.0 → 0.31.0" in lines
    assert "new        engine.args: none" in lines
    assert "loosened   process: kv.tokens: 1,100 → 1,000" in lines
    assert lines[-1].endswith("to accept it: mv p.baseline.new.json p.baseline.json")


def test_populations_that_were_not_run_are_kept_for_the_same_engine() -> None:
    first = proposed().baseline
    assert first is not None
    other = Population({"kv.tokens": 1})
    again = proposed(Baseline("p", first.identity, {**first.populations, "same-container": other}))
    assert again.baseline is not None
    assert again.baseline.populations["same-container"] == other
    assert again.lines() == ["the proposed baseline changes nothing"]


def test_several_starts_of_a_kind_give_the_worse_value_and_all_samples() -> None:
    second = started(fact("kv.tokens", 990), fact("weights.memory", 1.3, "TP0"), name="restart-2", ready_seconds=21.0)
    three = [("reference", GREEN), ("restart-1", GREEN), ("restart-2", GREEN)]
    proposal = propose(profile(), [COLD, WARM, second], three, None, {}, TODAY)
    assert proposal.baseline is not None
    accepted = proposal.baseline.populations["process"]
    assert accepted.values["kv.tokens"] == 990
    assert accepted.values["weights.gib_max"] == 1.3
    assert accepted.samples["ready_seconds"] == (20.0, 21.0)


REFUSALS = {
    "in CI": ({"environ": {"CI": "true"}}, "this is CI"),
    "a failed check": (
        {"verdicts": [("reference", GREEN), ("restart-1", red(FAILED))]},
        "1 of 2 checks are not green: restart-1::graphs (failed)",
    ),
    "an unseen check": (
        {"verdicts": [("reference", GREEN), ("restart-1", red(NOT_OBSERVABLE))]},
        "restart-1::graphs (not observable)",
    ),
    "nothing judged": ({"verdicts": []}, "nothing was judged in this run"),
    "a start that was not judged": ({"verdicts": [("reference", GREEN)]}, "restart-1 was not judged by any check"),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_refused(case: tuple[dict[str, Any], str]) -> None:
    more, reason = case
    proposal = proposed(**more)
    assert proposal.baseline is None
    assert proposal.changes == ()
    assert any(reason in line for line in proposal.lines())
    assert all(line.startswith("no baseline proposed: ") for line in proposal.lines())


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_not_every_ci_variable_means_ci(value: str) -> None:
    assert proposed(environ={"CI": value}).baseline is not None


def test_a_waived_check_does_not_bar_a_proposal() -> None:
    eager = profile(waivers=(Waiver("graphs", "eager by design"),))
    verdicts = [("reference", GREEN), ("restart-1", red(NOT_OBSERVABLE))]
    assert proposed(of=eager, verdicts=verdicts).baseline is not None


def test_what_was_not_seen_is_not_in_a_baseline() -> None:
    assert values_of(record()) == {}
    proposal = propose(profile(engine=Engine("vllm", "m")), [record()], [("restart-1", GREEN)], None, {}, TODAY)
    assert proposal.baseline is not None
    assert proposal.baseline.identity == {"engine.kind": "vllm", "engine.model": "m", "engine.args": []}
    assert proposal.baseline.populations["process"] == Population()
