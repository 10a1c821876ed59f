"""Waiting for readiness: HTTP 200 from health *and* a real completion, of the engine that was started and no other."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from pytest_startup.engines.base import Endpoints
from pytest_startup.observe.http import Http
from pytest_startup.observe.sources import Listening
from pytest_startup.profile.expect import Prompt
from pytest_startup.record import Completion, Evidence
from pytest_startup.workload.answers import why_not_real
from pytest_startup.workload.completions import Target, ask

FAST = 0.05  # seconds between two polls of a server that answers
SLOWEST_IDLE = 0.25  # seconds between two looks at a port on which nothing listens
PROBE_TOKENS = 16  # enough for text to show, few enough not to lengthen the start that is being timed
_START_TIME = re.compile(r"^process_start_time_seconds (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Attempt:
    """An unsuccessful step of the wait: ``what`` (``GET /health`` …) and why; equal ones in a row are counted."""

    what: str
    reason: str
    count: int = 1


@dataclass(frozen=True)
class ReadyResult:
    """How the wait ended. Seconds are since launch.

    ``completion`` is the first real one when ``ready``, else the last one that was tried. ``proof`` says why the server
    that answered is ours. ``reason`` is empty when ready.
    """

    ready: bool
    reason: str
    health_seconds: float | None = None
    ready_seconds: float | None = None
    completion: Completion | None = None
    proof: Evidence | None = None
    attempts: tuple[Attempt, ...] = ()


class ReadyWatch:
    """A thread that waits until the engine is ready. ``result`` is None until it has ended, and then tells how.

    ``owner`` tells whose the server on the port is, where that can be known. Otherwise the answering process must have
    started after ``launched_at`` by its ``/metrics`` (within ``clock_slack`` seconds), or the port must have been seen
    closed after launch. A server for which none of these holds never counts.

    ``give_up_after``: seconds for which a server may answer completions with 200 but without text, or with a 4xx that
    cannot mend itself, before the wait ends as not ready. Deadlines of the start are the caller's: ``stop()`` ends the
    wait at once.
    """

    def __init__(
        self,
        base_url: str,
        endpoints: Endpoints,
        model: str,
        prompt: Prompt,
        *,
        launched_at: float,
        request_timeout: float = 120.0,
        give_up_after: float = 30.0,
        clock_slack: float = 2.0,
        allowed: Collection[str] = (),
        api_key: str | None = None,
        owner: Callable[[], Listening] | None = None,
    ) -> None:
        self._http = Http(base_url, timeout=10.0, allowed=allowed, api_key=api_key)
        self._target = Target(self._http, endpoints, model, launched_at, request_timeout)
        self._prompt = replace(prompt, max_tokens=min(prompt.max_tokens, PROBE_TOKENS))
        self._launch_clock = time.time() - (time.monotonic() - launched_at)
        self._clock_slack, self._give_up_after = clock_slack, give_up_after
        self._owner = owner
        self._stopped = threading.Event()
        self._attempts: list[Attempt] = []
        self._seen_closed: float | None = None
        self._hopeless_since: float | None = None
        self._health: float | None = None
        self._asked: tuple[str, float] | None = None
        self._last: Completion | None = None
        self._result: ReadyResult | None = None
        self._thread = threading.Thread(target=self._run, name="startup-ready", daemon=True)

    def start(self) -> ReadyWatch:
        """Begin to wait. Idempotent."""
        if self._thread.ident is None:
            self._thread.start()
        return self

    @property
    def result(self) -> ReadyResult | None:
        """How the wait has ended; None while it goes on."""
        return self._result

    def attempts(self) -> tuple[Attempt, ...]:
        """What did not work so far, oldest first (the last 50 different ones)."""
        return tuple(self._attempts)

    @property
    def pending(self) -> str:
        """The request that has not been answered for a second or more, if there is one, and for how long."""
        asked = self._asked
        waited = 0.0 if asked is None else self._target.since_launch() - asked[1]
        return "" if asked is None or waited < 1.0 else f"{asked[0]} is unanswered for {waited:.1f} s"

    def stop(self) -> ReadyResult:
        """End the wait, also within a request; returns how far it came. Idempotent."""
        self._stopped.set()
        self._http.cancel()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._http.close()
        return self._result or self._end(False, "stopped before the engine was ready")

    def __enter__(self) -> ReadyWatch:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            result = self._watch()
        except Exception as e:  # a defect of ours must end the wait with its reason, not leave it waiting
            result = self._end(False, f"the readiness watch itself failed: {type(e).__name__}: {e}")
        self._result = result

    def _watch(self) -> ReadyResult:
        pause = FAST
        while not self._stopped.is_set():
            began = time.monotonic()
            if not self._http.listening():
                pause = self._closed("nothing listens")
            else:
                self._asked = f"GET {self._target.endpoints.health}", self._target.since_launch()
                answer = self._http.get(self._target.endpoints.health)
                self._asked = None
                if answer.kind in ("refused", "closed"):  # a container's port proxy accepts before the engine listens
                    pause = self._closed(answer.reason())
                elif not answer.ok:
                    self._note(f"GET {self._target.endpoints.health}", answer.reason())
                    pause = FAST
                else:
                    result, pause = self._healthy(began)
                    if result is not None:
                        return result
            self._stopped.wait(pause)
        return self._end(False, "stopped before the engine was ready")

    def _closed(self, reason: str) -> float:
        """Nothing there yet: back off in step with the time waited, so that the error stays at half a percent."""
        since = self._target.since_launch()
        self._seen_closed, self._health, self._hopeless_since = since, None, None
        self._note("connect", reason)
        return min(SLOWEST_IDLE, max(0.02, since / 200))

    def _healthy(self, began: float) -> tuple[ReadyResult | None, float]:
        """Health says 200: is it ours, and does it generate? Returns the result, or None and the pause to make."""
        since = self._target.since_launch()
        proof, doubt = self._ours()
        if proof is None:
            self._note("server", doubt)
            return None, SLOWEST_IDLE
        if self._health is None:
            self._health = since
        path = self._target.endpoints.chat if self._prompt.chat else self._target.endpoints.completions
        self._asked = f"POST {path}", self._target.since_launch()
        completion = ask(self._target, self._prompt, "ready")
        self._asked = None
        if not self._stopped.is_set():  # what was broken off because we stopped it shows nothing
            self._last = completion
        problem = why_not_real(completion)
        if problem is None:
            return self._end(True, "", completion, proof), 0.0
        self._note(f"POST {path}", problem)
        if not _may_mend(completion):
            self._hopeless_since = self._hopeless_since or since
            if self._target.since_launch() - self._hopeless_since >= self._give_up_after:
                text = f"for {self._give_up_after:g} s every completion was unusable: {problem}"
                return self._end(False, text, completion, proof), 0.0
        else:
            self._hopeless_since = None
        return None, max(FAST, min(1.0, (time.monotonic() - began) / 2))

    def _ours(self) -> tuple[Evidence | None, str]:
        """Why the server that answers is the one that was started; or None and the reason to doubt it."""
        since = self._target.since_launch()
        if self._owner is not None:
            found = self._owner()
            if found.who == "ours":
                return Evidence("process", "/proc/net/tcp", found.text, seconds=since), ""
            if found.who == "foreign":
                return None, found.text
        metrics = self._target.endpoints.metrics
        answer = self._http.get(metrics) if metrics else None
        started = start_time(answer.text) if answer is not None and answer.ok else None
        if started is not None:
            now = time.time() - self._target.since_launch()  # the same moment, unless the clock was set in between
            age = started - min(self._launch_clock, now)
            text = (
                f"process_start_time_seconds {started:.2f}, {abs(age):.1f} s {'after' if age >= 0 else 'before'} launch"
            )
            if age >= -self._clock_slack:
                return Evidence("endpoint", f"GET {metrics}", text, seconds=since), ""
            return None, f"the server that answers is older than this start ({text})"
        if self._seen_closed is not None:
            text = f"nothing answered on port {self._http.port} {self._seen_closed:.2f} s after launch"
            return Evidence("endpoint", "connect", text, seconds=self._seen_closed), ""
        return (
            None,
            "cannot tell that the server that answers is the engine that was started: it answered before it could",
        )

    def _note(self, what: str, reason: str) -> None:
        if self._stopped.is_set():
            return  # what fails because we stopped it is nobody's fault
        if self._attempts and (self._attempts[-1].what, self._attempts[-1].reason) == (what, reason):
            last = self._attempts[-1]
            self._attempts[-1] = replace(last, count=last.count + 1)
        else:
            self._attempts = [*self._attempts[-49:], Attempt(what, reason)]

    def _end(
        self, ready: bool, reason: str, completion: Completion | None = None, proof: Evidence | None = None
    ) -> ReadyResult:
        seen = completion or self._last
        seconds = completion.seconds_since_launch if ready and completion else None
        return ReadyResult(ready, reason, self._health, seconds, seen, proof, self.attempts())


def _may_mend(completion: Completion) -> bool:
    """Can waiting help? Not against a refusal (4xx), nor against 200 without a usable answer."""
    return completion.status in (0, 408, 425, 429) or completion.status >= 500


def start_time(metrics: str) -> float | None:
    """``process_start_time_seconds`` of a Prometheus text (the first without labels): seconds since the epoch."""
    found = _START_TIME.search(metrics)
    try:
        return float(found[1]) if found else None
    except ValueError:
        return None
