"""The window of our own workload: the engine's counters before and after it, and their differences as facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_startup.record import Completion, Evidence, Fact
from pytest_startup.workload.answers import read_completion
from pytest_startup.workload.requests import completion_body, token_prompt, word_prompt

if TYPE_CHECKING:
    from pytest_startup.workload.completions import Target

#: fact → counters that give it, newest name first: vLLM V1 (0.8 on; ``gpu_`` names to about 0.11), SGLang (0.4 on).
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "cache.prefix_hits": (
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
        "sglang:cached_tokens_total",
    ),
    "cache.prefix_queries": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
        "sglang:prompt_tokens_total",
    ),
    "cache.external_hits": ("vllm:external_prefix_cache_hits_total",),
    "cache.external_queries": ("vllm:external_prefix_cache_queries_total",),
    "spec.accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
    "spec.drafted": ("vllm:spec_decode_num_draft_tokens_total",),
}
#: Counters of what was generated, which grow with each answer.
GENERATED = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
#: Labels that tell engines of one server apart.
ENGINE_LABELS = ("engine", "dp_rank")
#: Long enough for at least two blocks of every block size in use (16 to 128 tokens), short enough for small contexts.
REUSED_TOKENS = 384
REUSED_PROMPTS = 4
#: Windows of long sessions, beside that of the batches, which has no name: member ``window`` of the counters' facts.
FIRST_TURN, RETURNS = "first-turn", "returns"
_SPANS = {None: "the workload", FIRST_TURN: "the first turn of the sessions", RETURNS: "the returns of the sessions"}

_Sums = dict[tuple[str, "str | None"], tuple[float, str]]


def counter_facts(
    before: str, after: str, where: str, seconds: float | None = None, window: str | None = None
) -> list[Fact]:
    """What the counters of ``COUNTERS`` grew by between two Prometheus texts, one fact per counter and engine.

    Unit tokens; source ``workload``. A counter that is not there has no fact; nor has one that went down: another
    process answered then, which ``counters.reset`` says. One that appeared in between counts from 0. ``window`` names
    the part of the workload that lies between, if not the batches.
    """
    span = _SPANS[window]
    old, new = _sums(before), _sums(after)
    facts = []
    fell = [
        f"{c} {old[key][0]:g} to {value:g}" for key, (value, c) in new.items() if key in old and value < old[key][0]
    ]
    if fell:
        text = f"counters went down during {span}: {', '.join(fell[:4])}"
        facts.append(Fact("counters.reset", len(fell), Evidence("workload", where, text, seconds=seconds)))
    for (name, engine), (value, counter) in sorted(new.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        was = old[name, engine][0] if (name, engine) in old else 0.0
        if not before.strip() or value < was:
            continue
        label = "" if engine is None else f'{{engine="{engine}"}}'
        text = f"{counter}{label} {was:g} before {span}, {value:g} after"
        delta = value - was
        facts.append(
            Fact(
                name,
                int(delta) if delta.is_integer() else delta,
                Evidence("workload", where, text, seconds=seconds),
                unit="tokens",
                engine=engine,
                detail={} if window is None else {"window": window},
            )
        )
    return facts


def still_facts(before: str, after: str, tokens: int, where: str, seconds: float | None = None) -> list[Fact]:
    """``counters.still``: ``tokens`` were counted in the answers, and the engine's own counter of them did not move."""
    names = {"generated": GENERATED}
    old, new = ({key: value for key, (value, _) in _sums(text, names).items()} for text in (before, after))
    if not tokens or not old or old != new:
        return []
    text = f"answers of {tokens} tokens, and the counters of generated tokens stand still at {sum(new.values()):g}"
    return [Fact("counters.still", tokens, Evidence("workload", where, text, seconds=seconds), unit="tokens")]


def _sums(text: str, names: Mapping[str, tuple[str, ...]] = COUNTERS) -> _Sums:
    """Fact and engine → the sum of its counter's series, and the counter's name; empty for a text that is none."""
    from prometheus_client.parser import text_string_to_metric_families

    wanted = {counter: (name, i) for name, counters in names.items() for i, counter in enumerate(counters)}
    found: dict[tuple[str, str | None], dict[int, tuple[float, str]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name not in wanted:
                    continue
                name, age = wanted[sample.name]
                engine = next((sample.labels[k] for k in ENGINE_LABELS if k in sample.labels), None)
                series = found.setdefault((name, engine), {})
                series[age] = (series.get(age, (0.0, ""))[0] + sample.value, sample.name)
    except ValueError:
        return {}
    return {key: series[min(series)] for key, series in found.items()}


class CounterWindow:
    """Opened before the workload, closed behind it, in which so many ``tokens`` were counted; ``close`` gives the facts
    (none without a metrics endpoint). ``window``: see ``counter_facts``."""

    def __init__(self, target: Target, window: str | None = None) -> None:
        self._target, self._window = target, window
        self._before = self._metrics()
        #: The data-parallel engines that the counters name, in order.
        self.engines = sorted({e for _, e in _sums(self._before) if e is not None and e.isdecimal()}, key=int)

    def close(self, tokens: int = 0) -> list[Fact]:
        where, after = f"GET {self._target.endpoints.metrics}", self._metrics()
        at = self._target.since_launch()
        still = still_facts(self._before, after, tokens, where, at)
        return [*counter_facts(self._before, after, where, at, self._window), *still]

    def _metrics(self) -> str:
        path = self._target.endpoints.metrics
        answer = self._target.http.get(path) if path else None
        text = answer.text if answer is not None and answer.ok else ""
        return "" if text.lstrip().startswith("<") else text  # a page of a proxy is no counter of 0


def reuse_prompts(target: Target, seed: int, times: int, engines: Sequence[str] = ()) -> list[Completion]:
    """Send a few long prompts, each so many ``times`` in a row, one token of output. Returns failures.

    Twice in a row, a prefix cache that works must hit; once more behind other work that has filled the engine's own
    cache, an external tier must. Refused as token ids or for their length, they are sent as fewer words. Ends with the
    first request that is not answered at all.
    """
    failures = []
    for index in range(REUSED_PROMPTS):
        for _ in range(times):
            to = target.to_engine(engines, index)
            answer = _ask(target, token_prompt(REUSED_TOKENS, seed, "reuse", index), to)
            if 400 <= answer.status < 500:
                answer = _ask(target, word_prompt(REUSED_TOKENS // 2, seed, "reuse", index), to)
            if answer.status != 200 or answer.error:
                failures.append(answer)
            if not answer.status:
                return failures
    return failures


def _ask(target: Target, prompt: str | list[int], headers: Mapping[str, str]) -> Completion:
    body = completion_body(target.model, prompt, 1, ignore_eos=True)
    answer = target.http.post(target.endpoints.completions, body, target.request_timeout, headers)
    return read_completion(answer, purpose="throughput", prompt="reuse", asked_tokens=1)
