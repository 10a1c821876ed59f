"""Progress bars whose line another process breaks: only the last state of a bar is a statement."""

from __future__ import annotations

from pytest_startup.engines.reader import Reader, read
from pytest_startup.engines.registry import tables

TITLE = "Capturing CUDA graphs (decode, FULL)"
WORKER = "(Worker_TP0 pid=4) "
OTHER = "(Worker_TP1 pid=5) INFO 11-29 10:00:00 [x.py:1] captured"


def state(done: int, seconds: int, total: int = 35) -> str:
    return f"\r{TITLE}:  9%|#   | {done}/{total} [00:{seconds:02d}<00:09,  9.00it/s]"


def bars(*lines: str) -> list[tuple[int, int, str | None]]:
    facts, _ = read(["\n".join([*lines, ""]).encode()], Reader(tables()))
    found = [fact for fact in facts if fact.name == "graphs.captured"]
    return [(fact.evidence.line or 0, fact.value["done"], fact.rank) for fact in found if isinstance(fact.value, dict)]


def test_a_bar_goes_on_without_its_prefix_after_the_record_of_another_process() -> None:
    assert bars(WORKER + state(1, 0) + state(12, 2), OTHER, state(20, 3) + state(35, 5)) == [(3, 35, None)]


def test_a_bar_gets_its_prefix_back() -> None:
    assert bars(state(12, 2), OTHER, WORKER + state(35, 5)) == [(3, 35, "TP0")]


def test_a_bar_that_is_complete_or_older_is_another_one() -> None:
    assert bars(WORKER + state(35, 5), OTHER, state(35, 4)) == [(1, 35, "TP0"), (3, 35, None)]
    assert bars(WORKER + state(12, 7), OTHER, state(20, 3)) == [(1, 12, "TP0"), (3, 20, None)]
    assert bars(WORKER + state(12, 2), OTHER, state(20, 3, total=51)) == [(1, 12, "TP0"), (3, 20, None)]


def test_bars_of_two_ranks_stay_apart() -> None:
    assert bars(WORKER + state(12, 2), "(Worker_TP1 pid=5) " + state(35, 5)) == [(1, 12, "TP0"), (2, 35, "TP1")]
