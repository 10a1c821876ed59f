"""Long sessions that come back: what an offload tier is for, once they are more than the engine's own cache holds.

Every session sends its long prompt once, in order; then, turn by turn, each comes back in the same order with all that
it has sent and a few new tokens. Where all sessions together do not fit, the engine's own cache has dropped a session
before it comes back, so that an external tier has to answer. Nothing can hit in the first turn: the counters of the
returns are kept apart. Each of several data-parallel engines has its own sessions. Prompts are seeded, the same at each
start; a server that refuses token ids gets words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_startup.profile.expect import ExpectSessions
from pytest_startup.record import JSON, Completion, Evidence, Fact
from pytest_startup.workload.answers import read_completion
from pytest_startup.workload.completions import Target, in_flight
from pytest_startup.workload.requests import completion_body, token_prompt, word_prompt
from pytest_startup.workload.throughput import why_not_counted
from pytest_startup.workload.window import FIRST_TURN, RETURNS, CounterWindow

#: Longest time of one turn: at 8,000 tokens per second 4.8 million tokens are read in it.
TURN_SECONDS = 600.0


@dataclass(frozen=True)
class Held:
    """``facts``: the counters of the first turn and of the returns, each with its ``window``, and ``workload.sessions``
    (see ``summary``). ``failures``: every failed request. ``stopped``: why not all turns were made, else None."""

    facts: tuple[Fact, ...]
    failures: tuple[Completion, ...] = ()
    stopped: str | None = None


def prompt_of(expect: ExpectSessions, session: int, turn: int, ids: bool = True) -> list[int] | str:
    """What ``session`` sends in ``turn`` (from 0): what it sent before, and ``output_tokens`` new ones per return."""
    parts: list[tuple[int, tuple[object, ...]]] = [(expect.prompt_tokens, ("session", session))]
    parts += [(expect.output_tokens, ("session", session, "turn", t)) for t in range(1, turn + 1)]
    if ids:
        return [token for tokens, place in parts for token in token_prompt(tokens, *place)]
    return " ".join(word_prompt(tokens, *place) for tokens, place in parts)


def run(
    target: Target,
    expect: ExpectSessions,
    *,
    turn_seconds: float = TURN_SECONDS,
    on_turn: Callable[[int], None] | None = None,
) -> Held:
    """All turns, ``expect.concurrency`` sessions at once; ``on_turn`` hears the number (from 1) of each that begins.

    Ends early when every request of a turn failed, or ``turn_seconds`` after a turn began: what is missing is not made
    up.
    """
    window = CounterWindow(target, FIRST_TURN)
    turns = _Turns(target, expect, turn_seconds, window.engines)
    facts: list[Fact] = []
    done, stopped = 0, None
    for turn in range(expect.turns):
        if on_turn is not None:
            on_turn(turn + 1)
        if turn == 1:
            facts += window.close(turns.take_output())
            window = CounterWindow(target, RETURNS)
        stopped = turns.make(turn)
        if stopped is not None:
            break
        done += 1
    facts += window.close(turns.take_output())
    facts.append(summary(expect, turns.held, turns.requests, len(turns.failures), done, stopped, target.since_launch()))
    return Held(tuple(facts), tuple(turns.failures), stopped)


def summary(
    expect: ExpectSessions,
    held: int,
    requests: int,
    failed: int,
    turns: int,
    stopped: str | None,
    seconds: float | None = None,
) -> Fact:
    """``workload.sessions``: the tokens that all sessions hold together; its members say what was asked and done."""
    text = (
        f"{expect.count} sessions of {expect.prompt_tokens:,} tokens, {turns} of {expect.turns} turns, "
        f"{expect.concurrency} at once: {requests - failed} of {requests} requests answered, {held:,} tokens together"
    )
    detail: dict[str, JSON] = {**asked(expect), "requests": requests, "failed": failed, "done": turns}
    if stopped is not None:
        detail["stopped"] = stopped
    evidence = Evidence("workload", "sessions", text, seconds=seconds)
    return Fact("workload.sessions", held, evidence, unit="tokens", detail=detail)


def asked(expect: ExpectSessions) -> dict[str, JSON]:
    """What makes two runs of sessions comparable, as members of ``workload.sessions``."""
    return {
        "count": expect.count,
        "prompt_tokens": expect.prompt_tokens,
        "output_tokens": expect.output_tokens,
        "turns": expect.turns,
        "concurrency": expect.concurrency,
    }


class _Turns:
    """Makes turns; remembers whether this server takes token ids, and how much each session holds."""

    def __init__(self, target: Target, expect: ExpectSessions, limit: float, engines: Sequence[str]) -> None:
        self.failures: list[Completion] = []
        self.requests = 0
        self._target, self._expect, self._limit, self._engines = target, expect, limit, engines
        self._ids = True
        self._held: dict[int, int] = {}
        self._output = 0

    @property
    def held(self) -> int:
        """Tokens of all sessions together, by the server's usage where it counts them."""
        return sum(self._held.values())

    def take_output(self) -> int:
        """Tokens that were generated since this was last asked."""
        taken, self._output = self._output, 0
        return taken

    def make(self, turn: int) -> str | None:
        """Every session once; why the turn was not made whole, or None."""
        until = time.monotonic() + self._limit
        first = [self._first()] if turn == 0 else []

        def one(index: int) -> Completion | None:
            return self._one(index, turn, self._ids) if time.monotonic() < until else None

        rest = range(len(first), self._expect.count)
        answers = [*first, *in_flight(self._target, self._expect.concurrency, len(rest), lambda i: one(rest[i]))]
        sent = [(session, answer) for session, answer in enumerate(answers) if answer is not None]
        failed = [answer for session, answer in sent if not self._count(session, turn, answer)]
        self.failures += failed
        if sent and len(failed) == len(sent):
            return (
                f"all {len(sent)} requests of turn {turn + 1} failed: {failed[-1].error or why_not_counted(failed[-1])}"
            )
        if len(sent) < len(answers):
            return f"the limit of {self._limit:g} s was reached in turn {turn + 1}, {len(answers) - len(sent)} not sent"
        return None

    def _first(self) -> Completion:
        """The first session's first prompt tells whether ids are taken: refused, it is sent as words."""
        answer = self._one(0, 0, ids=True)
        if not 400 <= answer.status < 500:
            return answer
        words = self._one(0, 0, ids=False)
        self._ids = 400 <= words.status < 500
        return answer if self._ids else words

    def _one(self, session: int, turn: int, ids: bool) -> Completion:
        expect, target = self._expect, self._target
        body = completion_body(
            target.model, prompt_of(expect, session, turn, ids), expect.output_tokens, ignore_eos=True
        )
        to = target.to_engine(self._engines, session)
        answer = target.http.post(target.endpoints.completions, body, target.request_timeout, to)
        return read_completion(
            answer,
            purpose="sessions",
            prompt=f"session {session}, turn {turn + 1}",
            asked_tokens=expect.output_tokens,
            seconds_since_launch=target.since_launch(),
        )

    def _count(self, session: int, turn: int, answer: Completion) -> bool:
        """Was this request answered? Then the session holds so many tokens now."""
        self.requests += 1
        if why_not_counted(answer) is not None:
            return False
        sent = answer.prompt_tokens or self._expect.prompt_tokens + turn * self._expect.output_tokens
        self._held[session] = sent + (answer.completion_tokens or 0)
        self._output += answer.completion_tokens or 0
        return True
