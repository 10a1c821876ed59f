"""Throughput: the fixed, seeded request set in timed batches, repeats interleaved over the concurrencies.

Output tokens are those of the server's usage counts. A batch is closed-loop: ``concurrency`` requests are in flight
until the last ones end. Prompts are token ids (exact lengths, no tokenizer needed); a server that refuses them gets
words. The engine's counters before and after tell what this workload used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pytest_startup.observe.host import cpu_stalled, pressure_facts
from pytest_startup.profile.expect import ExpectThroughput
from pytest_startup.record import Completion, Fact, ThroughputSample
from pytest_startup.workload.answers import read_completion, why_not_real
from pytest_startup.workload.completions import Target, in_flight
from pytest_startup.workload.requests import completion_body, token_prompt, word_prompt
from pytest_startup.workload.window import CounterWindow, reuse_prompts

#: Requests per batch, where the profile gives none: this many for each one in flight.
ROUNDS = 2


@dataclass(frozen=True)
class Measured:
    """``samples`` in the order measured. ``failures``: the failed requests (all of them, also of the warm-up).

    ``facts``: the counters' deltas over the whole workload (``window.counter_facts``), and how busy the host was
    (``host.cpu_pressure``). ``stopped`` says why not all was measured: the engine no longer answered, or the time was
    up; None if all was.
    """

    samples: tuple[ThroughputSample, ...]
    facts: tuple[Fact, ...] = ()
    failures: tuple[Completion, ...] = ()
    stopped: str | None = None


def requests_per_batch(expect: ExpectThroughput, concurrency: int) -> int:
    """At least one for each place of the concurrency."""
    return max(concurrency, expect.requests or ROUNDS * concurrency)


def measure(
    target: Target,
    expect: ExpectThroughput,
    *,
    reuse: bool = True,
    limit_seconds: float = 600.0,
    on_batch: Callable[[ThroughputSample], None] | None = None,
) -> Measured:
    """Warm up, then ``expect.repeats`` batches at each concurrency, interleaved: 1, 8, 1, 8 …

    Ends early when every request of a batch failed, or after ``limit_seconds``: what is missing is not made up.
    ``reuse``: outside the timing, send long prompts twice before the batches, so that a prefix cache has something to
    hit, and once more behind them, for a tier that keeps what they drove out.
    """
    window = CounterWindow(target)
    batches = _Batches(target, expect)
    if reuse:
        batches.failures += reuse_prompts(target, expect.seed, 2, window.engines)
    samples: list[ThroughputSample] = []
    began, stalled = time.monotonic(), cpu_stalled()
    stopped = batches.all(samples, limit_seconds, on_batch)
    busy = pressure_facts(stalled, cpu_stalled(), time.monotonic() - began, target.since_launch())
    if reuse and stopped is None:
        batches.failures += reuse_prompts(target, expect.seed, 1, window.engines)
    counted = window.close(sum(s.output_tokens for s in samples))
    return Measured(tuple(samples), (*counted, *busy), tuple(batches.failures), stopped)


class _Batches:
    """Runs batches; remembers whether this server takes token ids."""

    def __init__(self, target: Target, expect: ExpectThroughput) -> None:
        self.failures: list[Completion] = []
        self._target, self._expect = target, expect
        self._ids = True
        self._probed = False

    def all(
        self, samples: list[ThroughputSample], limit: float, on_batch: Callable[[ThroughputSample], None] | None
    ) -> str | None:
        """All batches into ``samples``; why it ended early, or None."""
        began = time.monotonic()
        for repeat in range(-self._expect.warmup, self._expect.repeats):
            for concurrency in self._expect.concurrency:
                if time.monotonic() - began > limit:
                    return f"the limit of {limit:g} s was reached"
                sample = self.run(concurrency, repeat)
                if repeat >= 0:
                    samples.append(sample)
                    if on_batch is not None:
                        on_batch(sample)
                if sample.failed == sample.requests:
                    return f"all {sample.requests} requests failed: {self.failures[-1].error}"
        return None

    def run(self, concurrency: int, repeat: int) -> ThroughputSample:
        """One batch; warm-up batches have a negative ``repeat``. One request before the first asks if ids are taken."""
        count = requests_per_batch(self._expect, concurrency)
        if not self._probed:
            self._probed = True
            self._ids = not 400 <= self._one(concurrency, repeat, count).status < 500
        began = time.monotonic()
        answers = in_flight(self._target, concurrency, count, lambda i: self._one(concurrency, repeat, i))
        seconds = time.monotonic() - began
        bad = [a for a in answers if why_not_counted(a) is not None]
        self.failures += bad
        tokens = sum(a.completion_tokens or 0 for a in answers if a not in bad)
        return ThroughputSample(concurrency, repeat, count, len(bad), tokens, seconds)

    def _one(self, concurrency: int, repeat: int, index: int) -> Completion:
        expect, target = self._expect, self._target
        place = (expect.seed, concurrency, repeat, index)
        prompt = (token_prompt if self._ids else word_prompt)(expect.prompt_tokens, *place)
        body = completion_body(target.model, prompt, expect.output_tokens, seed=expect.seed, ignore_eos=True)
        answer = target.http.post(target.endpoints.completions, body, target.request_timeout)
        return read_completion(
            answer,
            purpose="throughput",
            prompt="/".join(map(str, place)),
            asked_tokens=expect.output_tokens,
            seconds_since_launch=target.since_launch(),
        )


def why_not_counted(answer: Completion) -> str | None:
    """Why a request counts as failed, else None. ``ignore_eos`` goes on past the end, so that its text may be empty."""
    out, asked = answer.completion_tokens, answer.asked_tokens
    if answer.status == 200 and not answer.error and out is not None and asked is not None and out > asked:
        return f"usage counts {out} completion tokens, {asked} were asked for"
    if answer.status == 200 and not answer.error and not answer.text.strip():
        return None if answer.completion_tokens else "HTTP 200 without text and without tokens"
    return why_not_real(answer)
