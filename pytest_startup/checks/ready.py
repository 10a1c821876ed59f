"""ready: real completions came back, alone, streamed and several at once, and the engine still answers at the end."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common, mixed_up, texts
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.model import Profile
from pytest_startup.ranks import TITLE
from pytest_startup.record import JSON, Completion, Evidence, Failure, StartRecord

#: ``first`` is the completion that ended the wait, ``last`` the one behind the workload.
PURPOSES = ("first", "ready", "ready-chat", "ready-stream", "together", "last")
#: Reports of "waiting, none running, 0 tokens/s" from which on the engine is stuck and not only slow to begin.
STALLED = 3
_NAMES = {
    "first": "the first completion",
    "ready": "the completion",
    "ready-chat": "the chat completion",
    "ready-stream": "the streamed completion",
    "last": "the completion after the workload",
}


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, _baseline: Baseline | None) -> Verdict:
    """Judges the start's failure, its first completions and its health after the workload."""
    judging = common.Judging("ready", "a completed request after HTTP 200 of the health endpoint")
    if start.failure is not None:
        _start_failed(judging, start, start.failure)
    # What we cancelled ourselves when the engine was found dead says nothing.
    ours = start.failure is not None
    answers = [c for c in start.completions if c.purpose in PURPOSES and not (ours and c.error == "cancelled")]
    if not answers and start.failure is None:
        judging.failed(
            "the engine never completed a request",
            "HTTP 200 from the health endpoint and a real completion",
            [
                "health never answered 200"
                if start.health_seconds is None
                else f"health answered 200 after {start.health_seconds:.1f} s, no completion followed"
            ],
            helps=("health 200 alone proves nothing: read the last lines of the log",),
        )
    before = list(reference.completions) if reference is not None else []
    for answer in answers:
        if _without_template(answer) and not any(c.purpose == answer.purpose and c.status == 200 for c in before):
            judging.numbers["chat"] = "no chat template"
        elif answer.purpose != "together":
            _one(judging, profile, answer, _NAMES.get(answer.purpose, answer.purpose))
    together = [a for a in answers if a.purpose == "together"]
    _together(judging, profile, together)
    mixed_up.judge(judging, profile, together, start.completions)
    if not _unsteady([start, *([reference] if reference else [])]):
        _streamed_agrees(judging, answers)
    if start.failure is None:
        _alive_after(judging, start)
        _stalled(judging, start)
        _lost(judging, start)
        _replaced(judging, start)
    _began_again(judging, start)
    for fact in start.named("log.incomplete"):
        judging.not_observable(
            f"the log of this start is incomplete: what went wrong behind the break is not seen ({fact.value})",
            "a complete log",
            "the lines behind the break",
            [fact],
            ("look at the free space of the artifacts folder",),
        )
    if start.ready_seconds is not None:
        judging.numbers["ready s"] = round(start.ready_seconds, 2)
    return judging.verdict()


def _start_failed(judging: common.Judging, start: StartRecord, failure: Failure) -> None:
    when = f" after {failure.after_seconds:.0f} s" if failure.after_seconds is not None else ""
    where = f" on rank {failure.rank}" if failure.rank else (f" on node {failure.node}" if failure.node else "")
    state = "the engine died after it had been ready" if start.ready else "the start failed"
    judging.failed(
        f"{state} in phase {failure.phase or 'unknown'}{where}{when}: {failure.summary}",
        "a start that becomes ready and stays so",
        [f"cause: {failure.cause.text}" if failure.cause else "no line explains it; the last lines are the evidence"],
        [failure.cause] if failure.cause else failure.last_lines,
        [*failure.helps, *(f"no help: {n}" for n in failure.no_help)],
    )


def _without_template(answer: Completion) -> bool:
    """A model without a chat template (base models) can't be asked by chat; vLLM says so with HTTP 400.

    A profile that wants chat asks by it from the first completion on, which must be one."""
    said = f"{answer.error} {answer.text}".lower()
    refused = answer.purpose == "ready-chat" and 400 <= answer.status < 500
    return refused and ("chat template" in said or "chat_template" in said)


def _together(judging: common.Judging, profile: Profile, answers: list[Completion]) -> None:
    """Each kind of answer once: a batch that goes wrong often does so for all that are in it."""
    alike: dict[tuple[object, ...], list[Completion]] = {}
    for one in answers:
        what = (
            one.prompt,
            one.status,
            one.error,
            one.text,
            one.reasoning,
            one.finish_reason,
            one.completion_tokens,
            one.model,
        )
        alike.setdefault(what, []).append(one)
    for group in alike.values():
        _one(judging, profile, group[0], f"each of {len(group)} of the {len(answers)} completions asked at once")


def _one(judging: common.Judging, profile: Profile, answer: Completion, name: str) -> None:
    seen = common.answer_evidence(answer)
    judging.saw(seen)
    if answer.status != 200 or answer.error:
        status = "no HTTP answer" if answer.status == 0 else f"HTTP {answer.status}"
        judging.failed(
            f"{name} failed: {status}",
            "HTTP 200 and a text",
            [f"{status}: {answer.error or common.excerpt(answer.text)}"],
            [seen],
            ("health may answer 200 while the engine behind it is dead or stuck",),
        )
        return
    if not (answer.text.strip() or answer.reasoning.strip()):
        judging.failed(
            f"{name} came back with HTTP 200 and an empty text",
            "a text, or a reasoning text",
            [f"text {answer.text!r}, usage {answer.completion_tokens} tokens, finish reason {answer.finish_reason}"],
            [seen],
            ("weights may be missing (sleep level 2 without a reload does this), or a proxy answers in its place",),
        )
        return
    _usage(judging, name, answer, seen)
    served = profile.engine.served_name or profile.engine.model
    if answer.model is not None and answer.model != served:
        judging.failed(
            f"{name} came from model {answer.model}, {served} is pinned",
            served,
            [answer.model],
            [seen],
            ("another server listens on this port, or another name is served",),
            "engine.served_name",
        )
    for fault in texts.faults(answer, profile):
        judging.failed(
            f"{name} is not a sane text: {fault}",
            "a text without loops, floods, replacement characters or control tokens",
            [common.excerpt(answer.text or answer.reasoning, 160)],
            [seen],
            ("compare kernel backends, quantization and weights with the start that was validated",),
        )
    wanted = profile.expect.completion
    if wanted.contains and answer.prompt == wanted.prompt:
        body = f"{answer.reasoning}\n{answer.text}".lower()
        if wanted.contains.lower() not in body:
            judging.failed(
                f"{name} does not contain {wanted.contains!r}",
                f"{wanted.contains!r} in the answer to {common.excerpt(wanted.prompt)}",
                [common.excerpt(answer.text or answer.reasoning, 160)],
                [seen],
                source="expect.completion.contains",
            )


def _usage(judging: common.Judging, name: str, answer: Completion, seen: Evidence) -> None:
    wrong: list[str] = []
    out, prompt, asked = answer.completion_tokens, answer.prompt_tokens, answer.asked_tokens
    if out is None:
        if not answer.streamed:
            wrong.append("no count of completion tokens")
    elif out < 1:
        wrong.append(f"{out} completion tokens for a text of {len(answer.text)} characters")
    elif asked is not None and out > asked:
        wrong.append(f"{out} completion tokens, {asked} were asked for")
    elif asked is not None and out < asked and answer.finish_reason == "length":
        wrong.append(f"finish reason length after {out} of {asked} tokens: the answer was cut short")
    if prompt is not None and prompt < 1:
        wrong.append(f"{prompt} prompt tokens")
    elif prompt is None and not answer.streamed:
        wrong.append("no count of prompt tokens")
    if answer.finish_reason is None:
        wrong.append("no finish reason: the answer was cut off")
    elif answer.finish_reason not in ("stop", "length", "tool_calls"):
        wrong.append(f"finish reason {answer.finish_reason!r}")
    if wrong:
        judging.failed(
            f"{name} has a wrong usage: {wrong[0]}",
            f"1 to {asked or 'max_tokens'} completion tokens, at least 1 prompt token, a finish reason",
            wrong,
            [seen],
            ("a proxy that rewrites or cuts answers in between gives such counts",),
        )


def _unsteady(starts: list[StartRecord]) -> bool:
    """Does the engine answer one greedy prompt in two ways within one start, plainly both times?

    Seen on vLLM 0.26.0 with expert parallel over two ranks (random weights): then a stream that differs proves nothing.
    """
    for start in starts:
        said_of: dict[tuple[str, int | None], str] = {}
        for answer in start.completions:
            if answer.purpose in ("first", "ready", "last") and answer.status == 200 and not answer.error:
                said = answer.reasoning + answer.text
                if said_of.setdefault((answer.prompt, answer.asked_tokens), said) != said:
                    return True
    return False


def _streamed_agrees(judging: common.Judging, answers: list[Completion]) -> None:
    """A greedy answer is the same streamed and not. Where there are several plain ones (vLLM 0.26.0, two data-parallel
    engines with experts, random weights: two texts on each), the streamed one is one of them."""
    good = [a for a in answers if a.status == 200 and not a.error]
    for streamed in (a for a in good if a.streamed):
        plain = [
            a
            for a in good
            if not a.streamed
            and a.prompt == streamed.prompt
            and a.asked_tokens == streamed.asked_tokens
            and (a.purpose == "ready-chat") == (streamed.purpose == "ready-chat")
        ]
        alone = next((a for a in plain if a.purpose != "together"), None)  # others in its batch may change a token
        if alone is not None and all((a.text, a.reasoning) != (streamed.text, streamed.reasoning) for a in plain):
            judging.failed(
                "the streamed completion differs from the plain one",
                common.excerpt(alone.text or alone.reasoning),
                [common.excerpt(streamed.text or streamed.reasoning)],
                [common.answer_evidence(alone), common.answer_evidence(streamed)],
                ("events of the stream are lost or reordered between engine and client",),
            )


def _alive(value: JSON) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(_alive(v) for v in value.values())
    return value in (True, 200, "ok")


def _alive_after(judging: common.Judging, start: StartRecord) -> None:
    facts = start.named("endpoint.health_after")
    judging.saw(*facts)
    dead = [f for f in facts if not _alive(f.value)]
    if dead:
        judging.failed(
            "the engine no longer answers after the workload",
            "health 200 and a completion, also after the workload",
            [f"{common.who(f)}: {f.value} {f.evidence.text}".strip() for f in dead],
            dead,
            ("an engine process can die while its API server lives on and then exits with code 0: read the log's end",),
        )


def _stalled(judging: common.Judging, start: StartRecord) -> None:
    """The engine's own statistics: requests wait, none runs, no token comes, over several reports (10 s each)."""
    facts = start.named("serving.stalled")
    if len(facts) >= STALLED:
        judging.failed(
            f"requests wait and none runs: {len(facts)} reports of the engine with 0 tokens/s",
            f"fewer than {STALLED} such reports",
            [f"{common.who(f)}: {f.evidence.place()}" for f in facts[:4]],
            facts,
            ("the engine core is stuck behind an API server that still answers health with 200: restart it",),
        )


def _replaced(judging: common.Judging, start: StartRecord) -> None:
    """Counters grow in one process, with each answer: a smaller one, or one that stands, is that of another."""
    still = start.named("counters.still")
    if still:
        judging.failed(
            "the engine answered, and its counters stood still: they are not those of the engine that answers",
            "counters that grow with the answers",
            [f.evidence.text for f in still],
            still,
            ("a proxy that keeps old answers, or the metrics of another server: nothing that they say counts",),
        )
    facts = start.named("counters.reset")
    if facts:
        judging.failed(
            "the engine's counters went down during the workload: not one server answered, but several, one by one or"
            " in turn",
            "one server from the first completion to the last",
            [f.evidence.text for f in facts],
            facts,
            ("a server that was restarted in between, or a proxy in front of several, gives such counters",),
        )


def _lost(judging: common.Judging, start: StartRecord) -> None:
    """A rank that ended after the engine was ready: the rest may still answer, but it is not what was validated.

    Before that, children of a rank that only helped it to start may bear its name and end.
    """
    facts = [
        f
        for f in start.named("process.ended")
        if TITLE.match(str(f.value)) and (f.evidence.seconds or 0.0) > (start.ready_seconds or 0.0)
    ]
    if facts:
        judging.failed(
            f"{facts[0].value} ended while the engine served",
            "every process of the engine alive until the stop",
            [f.evidence.text for f in facts],
            facts,
            ("its last lines in the log say why; health and even completions may still be answered without it",),
        )


def _began_again(judging: common.Judging, start: StartRecord) -> None:
    """Something restarted the engine by itself within this start: what came up in the end hides what went wrong."""
    facts = start.named("start.earlier")
    if facts:
        times = "once" if len(facts) == 1 else f"{len(facts)} times"
        judging.failed(
            f"the engine was launched again {times} within this start: {facts[0].value}",
            "one launch",
            [f"lines {f.detail.get('first_line')} to {f.detail.get('last_line')}: {f.value}" for f in facts[:6]],
            facts,
            ("a supervisor or a wrapper's loop starts it again when it ends: launch the engine itself",),
        )
