"""quality: greedy prompts are answered as on the reference start; no loops, floods or leaked control tokens."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import zip_longest

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common, texts
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.expect import ExpectQuality
from pytest_startup.profile.model import Profile
from pytest_startup.record import JSON, Completion, StartRecord

_HELPS = (
    "another kernel backend, graph mode, quantization or weight file gives other tokens: compare those checks first",
)


def check(profile: Profile, reference: StartRecord | None, start: StartRecord, baseline: Baseline | None) -> Verdict:
    """Judges each answer by itself, then against that in the baseline and on the reference start."""
    judging = common.Judging("quality", "answers to greedy prompts (expect.quality names none, or none was asked)")
    wanted = profile.expect.quality
    answers = asked(start)
    if wanted is not None and not answers:
        judging.not_exercised(
            "none of the quality prompts was asked",
            f"{len(wanted.prompts)} prompts answered",
            ["no answer"],
            helps=("the workload did not run: look at ready and at the end of the log",),
            source="expect.quality.prompts",
        )
        return judging.verdict()
    if wanted is not None and len(answers) < len(wanted.prompts):
        judging.not_exercised(
            f"only {len(answers)} of {len(wanted.prompts)} quality prompts were asked",
            f"{len(wanted.prompts)} prompts answered",
            [f"{len(answers)} asked"],
            helps=("the engine stopped answering in between: look at the end of the log",),
            source="expect.quality.prompts",
        )
    good = [a for a in answers.values() if _answered(judging, a)]
    for answer in good:
        judging.saw(common.answer_evidence(answer))
        _by_itself(judging, profile, wanted, answer)
    if good and (known := common.population(baseline, start)) is not None:
        _as_accepted(
            judging, wanted, known.values.get("quality.answers"), {k: a for k, a in answers.items() if a in good}
        )
    if good and reference is not None:
        _as_before(judging, wanted, asked(reference), {k: a for k, a in answers.items() if a in good})
    return judging.verdict()


def asked(record: StartRecord) -> dict[tuple[str, bool, int], Completion]:
    """Quality answers by prompt, streaming, and the how-manieth time the prompt was asked."""
    count: Counter[tuple[str, bool]] = Counter()
    found: dict[tuple[str, bool, int], Completion] = {}
    for answer in record.completions:
        if answer.purpose == "quality":
            found[answer.prompt, answer.streamed, count[answer.prompt, answer.streamed]] = answer
            count[answer.prompt, answer.streamed] += 1
    return found


def accepted(record: StartRecord) -> dict[str, JSON]:
    """What a baseline keeps of the answers: hash of the prompt → hash of the answer, and its beginning to be shown."""
    return {
        _key(prompt, number): f"{_hash(body(answer))} {common.excerpt(body(answer), 60)}"
        for (prompt, streamed, number), answer in asked(record).items()
        if not streamed and answer.status == 200 and not answer.error
    }


def _key(prompt: str, number: int) -> str:
    return _hash(prompt) + (f"#{number + 1}" if number else "")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def body(answer: Completion) -> str:
    """All that was generated: reasoning and text."""
    return answer.reasoning + answer.text


def _answered(judging: common.Judging, answer: Completion) -> bool:
    if answer.status == 200 and not answer.error and body(answer).strip():
        return True
    what = answer.error or (f"HTTP {answer.status}" if answer.status != 200 else "empty text")
    judging.failed(
        f"the prompt {common.excerpt(answer.prompt, 60)} got no answer: {what}",
        "HTTP 200 and a text",
        [what],
        [common.answer_evidence(answer)],
        source="expect.quality.prompts",
    )
    return False


def _by_itself(judging: common.Judging, profile: Profile, wanted: ExpectQuality | None, answer: Completion) -> None:
    seen = common.answer_evidence(answer)
    for fault in texts.faults(answer, profile):
        judging.failed(
            f"the answer to {common.excerpt(answer.prompt, 60)} is not a sane text: {fault}",
            "a text without loops, floods, replacement characters or control tokens",
            [common.excerpt(body(answer), 160)],
            [seen],
            _HELPS,
            "expect.quality.loops",
        )
    for i, prompt in enumerate(wanted.prompts if wanted else ()):
        if prompt.prompt == answer.prompt and prompt.contains and prompt.contains.lower() not in body(answer).lower():
            judging.failed(
                f"the answer to {common.excerpt(answer.prompt, 60)} does not contain {prompt.contains!r}",
                f"{prompt.contains!r} in the answer",
                [common.excerpt(body(answer), 160)],
                [seen],
                _HELPS,
                f"expect.quality.prompts.{i}.contains",
            )


def _as_accepted(
    judging: common.Judging,
    wanted: ExpectQuality | None,
    known: JSON,
    now: dict[tuple[str, bool, int], Completion],
) -> None:
    """An engine that says something else than the accepted one says it at the reference start already."""
    told = known if isinstance(known, dict) else {}
    pairs = [
        (told[k], a) for (prompt, streamed, n), a in now.items() if not streamed and (k := _key(prompt, n)) in told
    ]
    other = [(str(was), a) for was, a in pairs if not str(was).startswith(_hash(body(a)))]
    tolerance = wanted.tolerance if wanted else 0.0
    if len(other) > tolerance * len(pairs):
        judging.failed(
            f"{len(other)} of {len(pairs)} greedy prompts are answered otherwise than in the baseline",
            "the answers of the baseline"
            + (f", up to {common.percent(tolerance)} of them different" if tolerance else ""),
            [
                f"{common.excerpt(a.prompt, 40)}: {common.excerpt(body(a), 60)}, it was {was.partition(' ')[2]}"
                for was, a in other[:6]
            ],
            [common.answer_evidence(a) for _, a in other[:4]],
            _HELPS,
            "baseline",
        )


def _as_before(
    judging: common.Judging,
    wanted: ExpectQuality | None,
    before: dict[tuple[str, bool, int], Completion],
    now: dict[tuple[str, bool, int], Completion],
) -> None:
    tolerance, logprob = (wanted.tolerance, wanted.logprob) if wanted else (0.0, 0.1)
    pairs = [(before[k], a) for k, a in now.items() if k in before and before[k].status == 200]
    if not pairs:
        judging.not_observable(
            "the reference start answered none of these prompts, so nothing could be compared",
            "the same prompts answered by both starts",
            "quality answers of the reference start",
            source="reference",
        )
        return
    other = [(old, new, how) for old, new in pairs if (how := difference(old, new, logprob))]
    judging.numbers["prompts compared"] = len(pairs)
    judging.numbers["prompts different"] = len(other)
    if len(other) > tolerance * len(pairs):
        judging.failed(
            f"{len(other)} of {len(pairs)} greedy prompts are answered differently; first: {other[0][2]}",
            "the answers of the reference start"
            + (f", up to {common.percent(tolerance)} of them different" if tolerance else ""),
            [f"{common.excerpt(new.prompt, 40)}: {how}" for _, new, how in other[:6]],
            [common.answer_evidence(a) for old, new, _ in other[:2] for a in (old, new)],
            _HELPS,
            "reference",
        )


def difference(old: Completion, new: Completion, logprob: float) -> str | None:
    """How two answers differ: the first other token, else text; then log-probabilities. None if they do not."""
    if old.tokens and new.tokens:
        for i, (a, b) in enumerate(zip_longest(old.tokens, new.tokens)):
            if a != b:
                return f"token {i + 1} is {_token(b)}, it was {_token(a)}"
    elif body(old) != body(new):
        at = next((i for i, (a, b) in enumerate(zip_longest(body(old), body(new))) if a != b), 0)
        begin = max(0, at - 10)
        was, now = (common.excerpt(body(x)[begin : at + 30]) for x in (old, new))
        return f"from character {at + 1} on it reads {now}, it was {was}"
    if old.logprobs and new.logprobs:
        gaps = [abs(a - b) for a, b in zip(old.logprobs, new.logprobs, strict=False)]
        if max(gaps) > logprob:
            at = gaps.index(max(gaps))
            return f"log-probability of token {at + 1} moved by {max(gaps):.3f}, more than {logprob:g}"
    return None


def _token(token: str | None) -> str:
    return "the end" if token is None else repr(token)
