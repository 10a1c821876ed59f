"""Which node do the others wait for? Read off the logs while they stand still: the engines themselves say nothing.

vLLM 0.31 waits up to 30 minutes behind ``world_size=2 rank=0 … distributed_init_method=tcp://…`` without a word, and
ignores TERM there; a wrong address shows as ``[c10d] … failed to connect … to host H:P - retrying`` where it is not
routed, and as silence where only the port is wrong. torch prints garbage as peer addresses in its other c10d lines, so
the address is taken from this form only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_WAITS = re.compile(
    r"world_size=(?P<size>\d+) rank=(?P<rank>\d+) .*distributed_init_method=(?P<where>\S+)|Init torch distributed begin"
)
_MET = re.compile(r"rank \d+ in world size \d+ is assigned as|Init torch distributed ends")
_RETRIES = re.compile(r"\[c10d\].*failed to connect\S* to host (?P<where>\S+:\d+) - retrying")
#: No line of interest is longer; a progress bar without end must not fill the memory.
_LONGEST = 4096


@dataclass
class Stand:
    """One node. ``since``: when it began to wait, None while it does not; ``where``: the rendezvous it waits at;
    ``retries``: the address that it can't connect to; ``met``: it has found the others in this start; ``kept``: it was
    left up by a restart of others, and has met those before them."""

    since: float | None = None
    where: str = ""
    retries: str | None = None
    met: bool = False
    lines: int = 0
    kept: bool = False
    _rest: bytes = b""

    def feed(self, data: bytes, seconds: float) -> None:
        """More of its log, received at ``seconds``."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_LONGEST:]
        for raw in whole:
            self.lines += 1
            if b"world" not in raw and b"torch distributed" not in raw and b"c10d" not in raw:
                continue
            line = raw[:_LONGEST].decode("utf-8", "replace")
            if found := _WAITS.search(line):
                self.since, self.where, self.retries = seconds, found["where"] or "", None
            elif _MET.search(line):
                self.since, self.met = None, True
            elif found := _RETRIES.search(line):
                self.retries = found["where"]


@dataclass(frozen=True)
class Missing:
    """The nodes for which others wait, and what is known of it, for a message."""

    nodes: tuple[str, ...]
    text: str


def missing(stands: Mapping[str, Stand], started: Sequence[str], now: float, limit: float) -> Missing | None:
    """None while nobody has waited for ``limit`` seconds. ``started``: nodes whose engine has been started."""
    waiting = {n: s for n, s in stands.items() if s.since is not None and now - s.since >= limit}
    if not waiting:
        return None
    who = ", ".join(f"{n} waits for the others since {s.since or 0.0:.0f} s{_at(s)}" for n, s in waiting.items())
    retrying = {n: s for n, s in stands.items() if s.retries is not None}
    if retrying:
        texts = [f"{n} can't connect to {s.retries} (wrong address or port?)" for n, s in retrying.items()]
        return Missing(tuple(retrying), f"{'; '.join(texts)}; {who}")
    absent = [n for n in stands if n not in waiting and not stands[n].met]
    if absent:
        texts = [f"{n} has not come to the rendezvous ({_state(stands[n], n in started)})" for n in absent]
        return Missing(tuple(absent), f"{'; '.join(texts)}; {who}")
    places = dict.fromkeys(s.where for s in waiting.values())
    why = "at different addresses" if len(places) > 1 else "and none reaches the other: a wrong port, or a network cut"
    return Missing(tuple(waiting), f"all nodes wait, {why}; {who}")


def _at(stand: Stand) -> str:
    return f" at {stand.where}" if stand.where else ""


def _state(stand: Stand, started: bool) -> str:
    if stand.kept:
        return "it was left up and does not come again: this engine needs all its nodes restarted"
    if not started:
        return "it has not been started"
    return f"it has printed {stand.lines} lines" if stand.lines else "it has printed nothing"
