"""Logs as streams: however they arrive, live or again, they say the same; and only so far as they belong to a start."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_startup.engines.registry import dialect
from pytest_startup.intake import Intake, LogReading, merged, read_logs
from pytest_startup.launch.base import NodeLog
from pytest_startup.observe.follow import replay
from pytest_startup.observe.patterns import PatternScan, hint
from pytest_startup.profile.expect import ExpectLog, LogPattern

DATA = Path(__file__).with_name("data") / "fake_engine"
COLD = (DATA / "cold.log").read_bytes().replace(b"@STAMP@", b"11-29 15:00:00").replace(b"@PID@", b"7")
PATTERNS = ExpectLog(
    forbid=(LogPattern("^Loading safetensors"), LogPattern("Traceback")), require=(LogPattern("KV cache"),)
)
VLLM = dialect("vllm")


def save(folder: Path, node: str, data: bytes, step: float = 0.01) -> NodeLog:
    (folder / node).mkdir(parents=True)
    log = NodeLog(node, folder / node / "engine.log", folder / node / "lines.tsv")
    log.path.write_bytes(data)
    rows = [f"{n}\t{n * step:.3f}\n" for n in range(1, data.count(b"\n") + 2)]
    log.lines.write_text("".join(rows))
    return log


def live(log: NodeLog, cuts: Sequence[int]) -> LogReading:
    """The log as it arrives in pieces, each with the time of its line."""
    data = log.path.read_bytes()
    intake = Intake([log], VLLM.reader(), PATTERNS)
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})

    def chunks() -> Iterator[tuple[NodeLog, tuple[bytes, float | None]]]:
        line = 1
        for begin, end in itertools.pairwise(places):
            for piece in re.findall(rb"[^\n]*\n|[^\n]+", data[begin:end]):
                yield log, (piece, round(line * 0.01, 3))
                line += piece.count(b"\n")

    intake.take(chunks())
    return intake.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 60_000), max_size=30))
def test_a_log_says_the_same_in_any_pieces(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    log = save(tmp_path_factory.mktemp("start"), "head", COLD)
    again = read_logs([log], VLLM, PATTERNS)
    assert live(log, cuts) == again
    assert again.ends == {"head": len(COLD)}
    assert {f.name for f in again.facts} >= {"engine.version", "kv.tokens", "log.match"}
    assert all(f.node == "head" and f.evidence.where == "head/engine.log" for f in again.facts)


def test_only_what_belongs_to_the_record_is_read(tmp_path: Path) -> None:
    log = save(tmp_path, "head", COLD)
    whole = read_logs([log], VLLM, PATTERNS)
    with log.path.open("ab") as file:
        file.write(b"Traceback (most recent call last):\nCPU KV cache size: 1 tokens\n")
    assert read_logs([log], VLLM, PATTERNS, whole.ends) == whole
    more = read_logs([log], VLLM, PATTERNS)
    assert len([f for f in more.facts if f.name == "log.match"]) > len(
        [f for f in whole.facts if f.name == "log.match"]
    )
    assert read_logs([log], VLLM, PATTERNS, {"head": 0}).facts == ()


def test_a_launch_begins_before_the_first_line_that_it_prints(tmp_path: Path) -> None:
    log = save(tmp_path, "head", COLD)
    rows = [row.split("\t") for row in log.lines.read_text().splitlines()]
    log.lines.write_text("".join(f"{number}\t{float(seconds) + 16.0:.3f}\n" for number, seconds in rows))
    reading = read_logs([log], VLLM, PATTERNS)
    assert reading.summary is not None
    launch, following = reading.summary.phases[:2]
    assert (launch.phase, launch.begin, launch.end) == ("launch", 0.0, following.begin)
    assert launch.seconds is not None
    assert launch.seconds > 16.0


def test_a_log_that_has_gone_says_nothing(tmp_path: Path) -> None:
    log = NodeLog("head", tmp_path / "engine.log", tmp_path / "lines.tsv")
    assert read_logs([log], VLLM, PATTERNS, {"head": 100}).facts == ()


def test_logs_of_two_nodes_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    one = save(tmp_path, "a", b"1\n3\n5\n", step=0.2)
    two = save(tmp_path, "b", b"2\n4\n6\n", step=0.25)
    rows = [(log.node, data) for log, (data, _) in merged([(one, replay(one)), (two, replay(two))])]
    assert rows == [("a", b"1\n"), ("b", b"2\n"), ("a", b"3\n"), ("b", b"4\n"), ("a", b"5\n"), ("b", b"6\n")]


def test_facts_of_two_nodes_name_their_place(tmp_path: Path) -> None:
    logs = [save(tmp_path, "a", COLD), save(tmp_path, "b", COLD)]
    reading = read_logs(logs, VLLM, PATTERNS)
    assert {(f.node, f.evidence.where) for f in reading.facts} == {("a", "a/engine.log"), ("b", "b/engine.log")}
    assert reading == read_logs(logs, VLLM, PATTERNS, reading.ends)


def test_a_pattern_that_fits_every_line_does_not_fill_the_record(tmp_path: Path) -> None:
    log = save(tmp_path, "head", b"INFO again\n" * 500)
    facts = read_logs([log], VLLM, ExpectLog(forbid=(LogPattern("again"),))).facts
    assert len([f for f in facts if f.name == "log.match"]) == 50
    assert facts[-1].evidence.line == 50


def test_the_time_of_a_match_is_that_of_the_first_byte_of_its_line(tmp_path: Path) -> None:
    log = save(tmp_path, "head", b"")
    intake = Intake([log], VLLM.reader(), ExpectLog(require=(LogPattern("two halves"),)))
    intake.take([(log, (b"x\ntwo ", 1.0))])
    intake.take([(log, (b"halves", 2.0))])
    (fact,) = [f for f in intake.close().facts if f.name == "log.match"]
    assert (fact.evidence.line, fact.evidence.seconds, fact.value) == (2, 1.0, "two halves")


HINTS = {
    "Traceback": "Traceback",
    "^Loading x$": "Loading x",
    "a|b": "a|b",
    "^a|b": None,
    r"a\$": r"a\$",
    r"a\\$": r"a\\",
    "[^x]y": "[^x]y",
    r"\bword\b": r"\bword\b",
    "(?i)x": None,
    "(?:a|b)c": "(?:a|b)c",
    "x(?=y)": None,
    "(?<=x)y": None,
    r"\Ax": None,
    r"x\Z": None,
    "a$b": None,
}


@pytest.mark.parametrize("pattern", HINTS)
def test_what_a_raw_line_is_searched_for_first(pattern: str) -> None:
    found = hint(pattern)
    assert (found.pattern if found else None) == HINTS[pattern]


PARTS = ["(Worker_TP1 pid=7) ", "INFO 11-29 15:00:00 [core.py:1] ", "\x1b[36m", "[0m", "Traceback", "a", "b", " ", "\r"]
ASKED = ("Traceback", "^a", "b$", r"\ba\b", "^a b$", "[^ab]Trace", "a|Trace.*b", "a(?=b)")


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=5).map("".join), max_size=6), st.sampled_from(ASKED))
def test_the_first_search_never_misses_a_line(lines: list[str], pattern: str) -> None:
    log = NodeLog("head", Path("engine.log"), Path("lines.tsv"))
    data = "".join(f"{line}\n" for line in lines).encode()
    quick, slow = (PatternScan(ExpectLog(forbid=(LogPattern(pattern),))) for _ in range(2))
    slow._hints = [None]
    assert quick.feed(log, data, 1.0) + quick.close() == slow.feed(log, data, 1.0) + slow.close()


def test_of_several_starts_in_one_log_the_last_one_counts_and_each_before_is_told(tmp_path: Path) -> None:
    """A supervisor's loop: what a dead launch said of itself is not said by the engine that serves."""
    oom = b"(EngineCore pid=8) ERROR 11-29 15:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory.\n"
    dead = COLD[: COLD.index(b"init engine")].replace(b"262,144", b"131,072") + b"\n" + oom
    reading = read_logs([save(tmp_path, "head", dead + COLD)], VLLM, PATTERNS)
    named = {f.name: f for f in reading.facts}
    assert [f.value for f in reading.facts if f.name == "kv.tokens"] == [262144]
    assert "out of device memory" in str(named["start.earlier"].value)
    assert named["start.earlier"].evidence.line == dead.count(b"\n")
    assert named["start.earlier"].node == "head"
    assert not [f for f in read_logs([save(tmp_path / "2", "head", COLD)], VLLM, PATTERNS).facts if f.start]
