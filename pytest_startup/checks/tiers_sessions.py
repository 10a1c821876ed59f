"""tiers, long sessions: were those that the profile asks for made and answered, and did they have to come back?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_startup.checks import common, kv
from pytest_startup.profile.expect import ExpectSessions
from pytest_startup.profile.model import Profile
from pytest_startup.record import JSON, Fact, StartRecord
from pytest_startup.workload.sessions import asked
from pytest_startup.workload.window import RETURNS

_KEY = "expect.tiers.sessions"
_MORE = "more sessions, longer prompts or a smaller KV cache"
_QUIETLY = "the connector failed quietly: read its lines in the log"


def judge(judging: common.Judging, profile: Profile, start: StartRecord) -> bool:
    """Judges the sessions that the profile asks for. True if an external tier can be judged by this start: by their
    returns, or, where none are asked for, by whatever the workload was."""
    wanted = profile.expect.tiers.sessions if profile.expect.tiers else None
    if wanted is None:
        return True
    made = _made(start)
    if made is None or any(made.detail.get(key) != value for key, value in asked(wanted).items()):
        judging.not_exercised(
            "the sessions of the profile were not run"
            if made is None
            else "other sessions were run than the profile has",
            _shown(asked(wanted)),
            ["no session"] if made is None else [_shown(made.detail)],
            [] if made is None else [made],
            ("the workload broke off, or the profile was changed since this run: a replay judges what was run",),
            _KEY,
        )
        return False
    judging.saw(made)
    whole = _failed_requests(judging, start, made)
    stopped = made.detail.get("stopped")
    if stopped and whole:
        judging.not_exercised(
            f"the sessions did not all come back: {stopped}",
            _shown(asked(wanted)),
            [f"{made.detail.get('done')} of {wanted.turns} turns"],
            [made],
            ("more of them at once (concurrency), or fewer or shorter ones",),
            _KEY,
        )
    return not stopped


def _failed_requests(judging: common.Judging, start: StartRecord, made: Fact) -> bool:
    """Was every request answered? A failure shows the server's words."""
    failed = common.number(made.detail.get("failed")) or 0
    if not failed:
        return True
    answers = [c for c in start.completions if c.purpose == "sessions"]
    helps = ["a rate without its failed requests means nothing: look at the log of that time"]
    if any(400 <= c.status < 500 for c in answers):
        helps = ["the model's context must hold prompt_tokens + turns × output_tokens: see --max-model-len"]
    elif any(not c.status for c in answers):
        helps.append("a long prompt takes its time: deadlines.request")
    judging.failed(
        f"{common.shown(failed)} of {made.detail.get('requests')} requests of the sessions failed",
        "every request answered in full",
        common.unique(f"{c.prompt}: {c.error or 'no usable answer'}" for c in answers)[: common.SHOWN],
        [made, *(common.answer_evidence(c) for c in answers)],
        helps,
        _KEY,
    )
    return False


def _made(start: StartRecord) -> Fact | None:
    return next(iter(start.named("workload.sessions")), None)


def _shown(members: Mapping[str, JSON]) -> str:
    """``32 sessions of 114,000 tokens, 2 turns, 16 new tokens each, 8 at once``."""
    sizes = ExpectSessions(*(int(common.number(members.get(k)) or 0) for k in asked(ExpectSessions(0, 0))))
    return (
        f"{sizes.count:,} sessions of {sizes.prompt_tokens:,} tokens, {sizes.turns} turns, "
        f"{sizes.output_tokens:,} new tokens each, {sizes.concurrency} at once"
    )


def _returns(start: StartRecord, name: str) -> list[Fact]:
    return [f for f in start.named(name) if f.detail.get("window") == RETURNS]


def _usual(tokens: Mapping[str | None, float]) -> float:
    """Half of what an engine got on the average: with less, nothing is said of it."""
    return sum(tokens.values()) / (2 * len(tokens))


def own_share(start: StartRecord) -> list[str]:
    """How much of the returns the engine's own cache gave, where its counters say it."""
    hits, queries = (
        [common.number(f.value) or 0.0 for f in _returns(start, name)]
        for name in ("cache.prefix_hits", "cache.prefix_queries")
    )
    if not hits or not sum(queries):
        return []
    return [f"the engine's own cache gave {common.percent(sum(hits) / sum(queries))} of the returns"]


def each_engine(
    judging: common.Judging, start: StartRecord, used: Sequence[Fact], offered: Sequence[Fact], source: str
) -> None:
    """Of several data-parallel engines each has a tier of its own: one that gives nothing hides behind the others.

    Sessions go where they were before (``Target.to_engine``); where a router does as it likes, hits are rarer on every
    engine alike.
    """
    gave = {f.engine: common.number(f.value) or 0.0 for f in used}
    asked_for = {f.engine: common.number(f.value) or 0.0 for f in offered}
    came = {f.engine: common.number(f.value) or 0.0 for f in _returns(start, "cache.prefix_queries")}
    for engine, tokens in came.items():
        if engine is None or asked_for.get(engine) or tokens < _usual(came) or not sum(asked_for.values()):
            continue
        judging.not_exercised(
            f"the external cache tier of engine {engine} was never asked when the sessions came back, others were",
            "some use by every data-parallel engine",
            [f"engine {engine}: {common.shown(tokens, 'tokens')} came back"],
            [f for f in (*used, *offered, *_returns(start, "cache.prefix_queries")) if f.engine == engine],
            (f"{_MORE}, or {_QUIETLY}",),
            source,
        )
    for engine, tokens in asked_for.items():
        if engine is None or gave.get(engine) or not tokens or tokens < _usual(asked_for):
            continue
        own = sum(common.number(f.value) or 0.0 for f in _returns(start, "cache.prefix_hits") if f.engine == engine)
        if own:
            judging.not_exercised(
                f"the external cache tier of engine {engine} had nothing to give when the sessions came back",
                "some use by every data-parallel engine",
                [f"engine {engine}: its own cache gave {common.shown(own, 'tokens')}"],
                [f for f in (*used, *offered) if f.engine == engine],
                (_MORE,),
                source,
            )
            continue
        judging.failed(
            f"the external cache tier of engine {engine} never gave anything when the sessions came back, others did",
            "some use by every data-parallel engine",
            [
                f"engine {e}: {common.shown(gave.get(e, 0.0))} of {common.shown(t, 'tokens')}"
                for e, t in asked_for.items()
            ],
            [f for f in (*used, *offered) if f.engine == engine],
            (
                f"{_QUIETLY}, those of this engine",
                "a router in between that sends sessions to engines which do not know them: more of them (count)",
            ),
            source,
        )


def helps(start: StartRecord) -> tuple[str, ...]:
    """Why an external tier had nothing to do, by the tokens held and the room for them; empty where one is unknown."""
    made, room = _made(start), kv.smallest(start)
    if made is not None:
        who, held = "the sessions hold", common.number(made.value)
    else:
        who, held = "the workload held about", _workload_tokens(start)
    if not held or room is None:
        return ()
    engines = {f.engine for f in start.named("cache.external_queries") if f.evidence.source == "workload"}
    capacity = room[0] * max(1, len(engines))
    tokens, space = common.shown(held, "tokens"), common.shown(capacity)
    if held > capacity:
        return (f"{who} {tokens} together, the engine's own cache has room for {space}: {_QUIETLY}",)
    more = _MORE if made is not None else "ask for long ones (expect.tiers.sessions), or a smaller KV cache"
    return (f"{who} {tokens} together, the engine's own cache has room for {space}: nothing had to come back; {more}",)


def _workload_tokens(start: StartRecord) -> float:
    """Prompt tokens that the engine's own cache did not have, and the tokens that the batches generated."""

    def of_batches(name: str) -> float:
        facts = [f for f in start.named(name) if f.evidence.source == "workload" and "window" not in f.detail]
        return sum(common.number(f.value) or 0.0 for f in facts)

    prompts = of_batches("cache.prefix_queries") - of_batches("cache.prefix_hits")
    return prompts + sum(s.output_tokens for s in start.throughput) if prompts > 0 else 0.0
