"""Real completions: the ones that prove readiness, one at a time and several at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from pytest_startup.profile.expect import Prompt
from pytest_startup.workload.answers import read_completion
from pytest_startup.workload.requests import chat_body, completion_body

if TYPE_CHECKING:
    from pytest_startup.engines.base import Endpoints
    from pytest_startup.observe.http import Http
    from pytest_startup.record import Completion


T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """A running engine to send requests to. ``model`` is the name it serves; ``launched_at`` is ``monotonic()``."""

    http: Http
    endpoints: Endpoints
    model: str
    launched_at: float
    request_timeout: float = 120.0

    def since_launch(self) -> float:
        """Seconds, as all times of a record."""
        return time.monotonic() - self.launched_at

    def to_engine(self, engines: Sequence[str], index: int) -> dict[str, str]:
        """Headers that send all requests of one ``index`` to the same of several data-parallel engines, in turn: each
        has a cache of its own, and a router may send what comes again to another one. They are numbered as the server
        has them, from 0: with load balancing per node their names begin at the node's first rank."""
        header = self.endpoints.engine_header
        return {header: str(index % len(engines))} if header and len(engines) > 1 else {}


def ask(
    target: Target,
    prompt: Prompt,
    purpose: str,
    *,
    stream: bool = False,
    logprobs: bool = False,
    seed: int = 0,
) -> Completion:
    """One greedy request, by chat if ``prompt.chat``, within ``target.request_timeout``. Never raises."""
    build = chat_body if prompt.chat else completion_body
    body = build(target.model, prompt.prompt, prompt.max_tokens, seed=seed, logprobs=logprobs, stream=stream)
    path = target.endpoints.chat if prompt.chat else target.endpoints.completions
    answer = target.http.post(path, body, target.request_timeout)
    return read_completion(
        answer,
        purpose=purpose,
        prompt=prompt.prompt,
        asked_tokens=prompt.max_tokens,
        streamed=stream,
        seconds_since_launch=target.since_launch(),
    )


def ready_completions(target: Target, prompt: Prompt) -> tuple[Completion, ...]:
    """The profile's prompt once whole (``ready``), once streamed (``ready-stream``), and by chat (``ready-chat``).

    With ``prompt.chat`` the first two already use the chat endpoint, and there is no third. All are greedy, so that
    whole and streamed text can be compared. Ends early when one is not answered at all.
    """
    found = [ask(target, prompt, "ready")]
    if found[-1].status:
        found.append(ask(target, prompt, "ready-stream", stream=True))
    if found[-1].status and not prompt.chat:
        chat = Prompt(prompt.prompt, max_tokens=prompt.max_tokens, chat=True)
        found.append(ask(target, chat, "ready-chat"))
    return tuple(found)


def completions_together(
    target: Target, prompt: Prompt, count: int, others: Sequence[Prompt] = ()
) -> tuple[Completion, ...]:
    """``count`` requests at once, of the profile's prompt and ``others`` in turn: batches use other graphs and kernels
    than a request alone, and an answer may go to the wrong one. No answer is longer than that to ``prompt``."""
    asked = [prompt, *(replace(p, max_tokens=min(p.max_tokens, prompt.max_tokens)) for p in others)]
    return tuple(in_flight(target, count, count, lambda i: ask(target, asked[i % len(asked)], "together")))


def in_flight(target: Target, concurrency: int, count: int, one: Callable[[int], T]) -> list[T]:
    """``one`` of 0 to ``count`` - 1, with ``concurrency`` of them in flight until the last ones end."""
    with ThreadPoolExecutor(concurrency, thread_name_prefix="startup-load") as pool:
        try:
            return list(pool.map(one, range(count)))
        except BaseException:  # Ctrl-C must not wait for what is in flight
            target.http.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
