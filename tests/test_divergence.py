"""Ranks that part while they start: red within seconds, with both ranks' lines; ranks in step stay unmentioned."""

from __future__ import annotations

import json

import pytest
from helpers_caches import DATA, GEMM1, GEMM2
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_startup.divergence import SKEW, Watcher
from pytest_startup.record import Evidence, Fact

R0, R1 = "TP0_EP0", "TP1_EP1"


def say(name, rank, at, value="", line=1, **detail):
    text = f"(Worker_{rank}) {name} {value}"
    return Fact(f"autotune.{name}", value, Evidence("log", "head/engine.log", text, line, rank=rank, seconds=at),
                rank=rank, detail=detail)  # fmt: skip


def bar(rank, at, op=GEMM1, done=21):
    return say("tuned", rank, at, {"kind": op, "done": done, "total": 21}, kind=op)


def feed(facts, until, skew=SKEW):
    """Play facts at their times, looking four times a second as the wait does; the failure and when it came."""
    watcher = Watcher(skew)
    pending = sorted(facts, key=lambda f: f.evidence.seconds)
    for step in range(int(until * 4) + 1):
        now = step / 4
        new = [f for f in pending if f.evidence.seconds <= now]
        pending = pending[len(new) :]
        failure = watcher.feed(new, now)
        if failure is not None:
            return failure, now
    return None, until


def test_one_rank_hits_and_the_other_tuned_the_same_op():
    failure, now = feed([say("started", R0, 1), say("started", R1, 1), say("hit", R0, 1.2, GEMM1), bar(R1, 9)], 60)
    assert now == 9.0
    assert failure.kind == "divergence"
    assert (failure.phase, failure.rank, failure.after_seconds) == ("warm-up", R1, 9.0)
    assert failure.summary == (
        "ranks part in autotune: TP0_EP0 used its records for gemm1 while TP1_EP1 tuned it"
        " (TP0_EP0 hit gemm1, has begun and is not done; TP1_EP1 tuned gemm1 21/21, has begun and is not done)"
    )
    assert {e.rank for e in failure.last_lines} == {R0, R1}
    assert failure.cause.rank == R1
    assert "waiting: the process group gives up after 1800 s" in failure.no_help
    assert "copying rank 0's records under another rank's key" in failure.no_help


def test_a_bar_that_stands_has_no_line_so_silence_behind_a_hit_is_enough():
    """The hang of the field: rank 0 hit and waits in a collective, rank 1 tunes and waits for it, and nobody prints."""
    failure, now = feed([say("started", R0, 1), say("started", R1, 1.1), say("hit", R0, 1.3, GEMM1)], 60)
    assert 1.3 + SKEW <= now <= 1.3 + SKEW + 0.5
    assert "TP0_EP0 used its records for gemm1; TP1_EP1 has begun, hit none of them and is not done" in failure.summary


def test_one_is_done_and_the_other_hit_nothing():
    facts = [say("started", R0, 1), say("started", R1, 1), say("hit", R0, 1.2, GEMM1), say("ended", R0, 2)]
    failure, now = feed(facts, 60)
    assert now <= 2 + SKEW + 0.5
    assert failure.rank == R1


def test_one_tuned_to_the_end_and_the_other_did_not_begin():
    facts = [say("loaded", R1, 0.5, 0), say("started", R0, 1), bar(R0, 8), bar(R0, 9, GEMM2), say("ended", R0, 9)]
    failure, now = feed(facts, 60)
    assert failure.summary.startswith(
        "ranks part in autotune: TP0_EP0 is done tuning and TP1_EP1 did not begin within 10 s"
    )
    assert now <= 9 + SKEW + 0.5


def test_a_rank_that_only_other_lines_name_counts_too():
    other = Fact("weights.load", 3.0, Evidence("log", "l", "", 1, rank=R1, seconds=0.1), rank=R1)
    failure, _ = feed([other, say("started", R0, 1), say("hit", R0, 1.2, GEMM1), say("ended", R0, 2)], 60)
    assert failure.rank == R1


def test_done_without_a_hit_is_red_at_once():
    facts = [
        say("started", R0, 1),
        say("started", R1, 1),
        say("hit", R0, 1.2, GEMM1),
        say("ended", R0, 2),
        say("ended", R1, 9),
    ]
    failure, now = feed(facts, 60)
    assert now == 9.0
    assert "TP1_EP1 is done and hit none: it tuned or fell back" in failure.summary


def both(*names, start=1.0, apart=0.3):
    return [f for n, rank in enumerate((R0, R1)) for f in names_at(names, rank, start + n * apart)]


def names_at(names, rank, at):
    for step, name in enumerate(names):
        op = GEMM1 if step % 2 else GEMM2
        yield bar(rank, at + step, op) if name == "tuned" else say(name, rank, at + step, op if name == "hit" else "")


@pytest.mark.parametrize(
    "facts",
    [
        both("started", "hit", "hit", "ended"),
        both("started", "tuned", "tuned", "ended"),
        both("started", "ended"),
        both("started", "tuned", "tuned", "ended", apart=8.0),
        both("started", "hit", "hit", "ended", apart=8.0),
        both("started", "hit", "tuned", "ended"),
        [],
        [say("started", R0, 1), say("started", R1, 200)],
        [*names_at(("started", "hit", "hit", "ended"), None, 1.0)],
        [*names_at(("started", "hit", "ended"), "TP0", 1.0)],
        [*names_at(("started", "hit", "hit", "ended"), "PP0_TP0", 1), *names_at(("started", "ended"), "PP1_TP0", 1)],
        # an engine core and its only worker are no two ranks
        [Fact("kv.tokens", 1, Evidence("log", "l", "", 1, seconds=0.5), rank="DP0"),
         *names_at(("started", "hit", "hit", "ended"), "DP0_TP0", 1.0)],
    ],
    ids=["warm", "cold", "nothing to tune", "cold, late", "warm, late", "partly", "silent", "started apart",
         "no rank named", "one rank", "other pipeline stage", "engine core"],
)  # fmt: skip
def test_ranks_in_step_are_left_alone(facts):
    assert feed(facts, 300) == (None, 300)


def test_a_rank_that_goes_on_printing_is_given_time():
    """Tuning many ops: as long as either rank prints tuning lines, only a real contradiction counts."""
    facts = [say("started", R0, 1), say("started", R1, 1), *(bar(R0, 5 * n, f"x::op{n}") for n in range(1, 8))]
    facts += [bar(R1, 5 * n + 4, f"x::op{n}") for n in range(1, 8)] + [say("ended", r, 41) for r in (R0, R1)]
    assert feed(facts, 120) == (None, 120)


def test_the_lines_that_flashinfer_printed_for_rank_0_only_records():
    """The real lines of two FlashInfer 0.6.18 processes on rank 0's records (``tools/flashinfer_caches.py``)."""
    from pytest_startup.engines import registry

    lines = json.loads((DATA / "flashinfer-log-lines.json").read_text())["0.6.18-leader-warm"]
    cut = next(n for n, line in enumerate(lines) if n and "Loaded" in line)
    reader, watcher = registry.dialect("vllm").reader(), Watcher()
    failure = None
    for n, line in enumerate(lines):
        who = "Worker_TP0_EP0" if n < cut else "Worker_TP1_EP1"
        facts = reader.feed(f"({who} pid=1) {line}\n".encode(), seconds=n / 10)
        failure = failure or watcher.feed(facts, n / 10)
    assert failure.rank == R1
    assert "TP0_EP0 used its records for gemm1" in failure.summary


events = st.tuples(
    st.sampled_from(["started", "ended", "hit", "tuned", "loaded", "refused"]),
    st.sampled_from([R0, R1, "DP0", None]),
    st.floats(0, 50),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(events, max_size=12))
def test_no_order_of_lines_is_an_error_and_a_failure_names_two_ranks(made):
    facts = [bar(r, at) if n == "tuned" else say(n, r, at, GEMM1 if n == "hit" else "") for n, r, at in made]
    failure, _ = feed(facts, 80)
    if failure is not None:
        assert failure.rank in (R0, R1, "DP0")
        assert failure.cause is not None
        assert failure.helps


@settings(deadline=None, max_examples=50)
@given(st.lists(events, max_size=12))
def test_two_ranks_with_the_same_lines_never_part(made):
    facts = []
    for name, _, at in made:
        for rank in (R0, R1):
            facts.append(bar(rank, at) if name == "tuned" else say(name, rank, at, GEMM1 if name == "hit" else ""))
    assert feed(facts, 80)[0] is None
