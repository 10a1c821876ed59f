"""An engine's end as a failure: its launcher may know a cause that no log of the engine can tell."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_startup.launch.exits import ASKED, CRASHES, told
from pytest_startup.ranks import TITLE, parse_rank
from pytest_startup.record import OWN_END, Fact, Failure, Leftover

if TYPE_CHECKING:
    from pytest_startup.launch.base import Exit

#: Ends by a signal, or of a process that nobody saw the end of: the log can only tell what followed.
STRUCK = ("killed", "crashed", "process-died")
#: ``Exit.reason`` → kind of failure, where the launcher knows better than the log. Other ends by a signal are one of
#: ``STRUCK``, all else is ``ended``: a cause that the log names counts.
KNOWN = {
    "oom-killed": "out-of-host-memory",
    "container-gone": "killed",
    "daemon-lost": "daemon-lost",
    "node-lost": "node-lost",
    "not-met": "node-missing",
    "not-started": "node-not-started",
    "step-failed": "step-failed",
}
#: How gloo and NCCL say that the other end has gone.
_BROKEN = re.compile(r"(?i)(?:closed|reset) by (?:remote )?peer|read error|broken pipe|remote process exited")
#: What helps where a node is the cause, and what can't.
NODES = {
    "node-lost": (
        ("the node, its network, its ssh and our keeper there; the engine itself may run on and answer /health",),
        ("waiting: the other nodes find it out after minutes (300 s in vLLM 0.31), or never without a request",),
    ),
    "node-missing": (
        ("the address and port of the rendezvous on every node, the firewall between them, the log of the node named",),
        ("waiting: an engine waits 30 min for its peers without a word", "TERM: it is ignored there"),
    ),
    "node-not-started": (
        (
            "what is named, on that node: a port or lock that is taken, a command, the condition of its start_when",
            "where it waited for another node: the log of that node",
        ),
        ("addresses and ports of the rendezvous, engine arguments: the engine of this node was not started",),
    ),
    "step-failed": (
        (
            "the step named, by hand in a container of that node: its last words are above",
            "where its condition came too late: a longer within of that step, or the steps of the node it waits for",
        ),
        (
            "addresses and ports of the rendezvous, deadlines.peers, engine arguments: no engine was started there yet",
            "a restart without a change",
        ),
    ),
}


#: Bytes free in /dev/shm below which it is full: less than what any engine takes at once.
SHM_FULL = 1 << 20
#: Kinds of failures of an engine that is no more.
ENDED = ("ended", *STRUCK, *KNOWN.values())


def kind_of(code: int | None) -> str:
    """``crashed`` or ``killed``, by the exit code of a process (-9) or of a container (137) that a signal ended.

    None: nobody saw how.
    """
    if code is None:
        return "process-died"
    number = -code if code < 0 else code - 128
    return "crashed" if number in CRASHES else "killed"


def failure_of(ended: Exit, when: str, phase: str, after: float | None, rank: str | None = None) -> Failure:
    """``when``: ``before it was ready``, ``while it served``."""
    from pytest_startup.engines.failure_help import advice

    kind = KNOWN.get(ended.reason) or (kind_of(ended.code) if ended.reason == "killed" else "ended")
    code = "" if ended.code is None else f" (exit code {ended.code})"
    helps, no_help = NODES.get(kind) or (advice(kind, phase) if kind != "ended" else ((), ()))
    what = "the start was given up" if kind in NODES else "the engine ended"
    return Failure(
        phase=phase,
        kind=kind,
        summary=f"{what} {when}{code}: {ended.text}",
        rank=rank,
        node=ended.node,
        after_seconds=after,
        helps=helps,
        no_help=no_help,
    )


def with_loss(failure: Failure, facts: Sequence[Fact], ready: float | None, said: Failure | None) -> Failure:
    """A rank that was gone before the engine failed while it served: who is left only tells that nobody answers.

    ``facts``: those of the launcher; ``ready``: seconds since launch; ``said``: the failure that the log tells. Whoever
    complains there was still alive.
    """
    from pytest_startup.engines.failure_help import advice

    if ready is None or failure.kind not in ("ended", "not-serving"):
        return failure
    complains = parse_rank((said.rank if said is not None else None) or "")
    ranks = [(f, TITLE.match(str(f.value))) for f in facts if f.name == "process.ended" and not _went(f)]
    lost = [(f, m.group(), m.group("rank")) for f, m in ranks if m and (f.evidence.seconds or 0.0) > ready]
    lost = [(f, title, rank) for f, title, rank in lost if not parse_rank(rank or "").agrees(complains)]
    if not lost:
        return failure
    fact, title, rank = min(lost, key=lambda one: (one[2] is None, one[0].evidence.seconds or 0.0))
    status = fact.detail.get("status")
    how, code = (told(status), os.waitstatus_to_exitcode(status)) if isinstance(status, int) else ("ended", None)
    kind = kind_of(code)
    helps, no_help = advice(kind, failure.phase)
    where = f" of node {fact.node}" if fact.node else ""
    text = f"{title} (pid {fact.detail.get('pid')}){where} {how} while the engine served; {failure.summary}"
    return replace(failure, kind=kind, summary=text, node=fact.node, rank=rank, helps=helps, no_help=no_help)


def late_losses(before: Sequence[Fact], after: Sequence[Fact], stop: float) -> list[Leftover]:
    """Ranks that ended behind the observation, whose facts of the launcher are ``before``, and were missed by ``stop``
    (seconds since launch): what ends later may end because of it, on another node even before its own turn comes."""
    known = {fact.detail.get("pid") for fact in before if fact.name == "process.ended"}
    lost = [f for f in after if f.name == "process.ended" and f.detail.get("pid") not in known]
    return [
        Leftover(OWN_END, f"{fact.value}: {fact.evidence.text}", released=False, node=fact.node)
        for fact in lost
        if TITLE.match(str(fact.value)) and (fact.evidence.seconds or 0.0) <= stop
    ]


def lost_after(facts: Sequence[Fact], ready: float) -> list[Fact]:
    """Ranks that ended after ``ready`` (seconds since launch); before, helpers of a start may bear their names."""
    lost = [f for f in facts if f.name == "process.ended" and TITLE.match(str(f.value))]
    return [f for f in lost if (f.evidence.seconds or 0.0) > ready]


def _went(fact: Fact) -> bool:
    """Did a process end by itself, or because it was asked to? Its own engine does that when it shuts down."""
    status = fact.detail.get("status")
    return isinstance(status, int) and (os.WIFEXITED(status) or os.WTERMSIG(status) in ASKED)


def with_left_up(failure: Failure, facts: Sequence[Fact]) -> Failure:
    """The failure of a node that this start left up: it had the nodes that were restarted for its peers."""
    up = failure.node is not None and any(f.name == "node.left_up" and f.node == failure.node for f in facts)
    if not up or "left up" in failure.summary:
        return failure
    text = f"node {failure.node} was left up and lost its peers: this engine needs all its nodes restarted"
    return replace(failure, summary=f"{failure.summary}; {text}")


def with_peer(failure: Failure, facts: Sequence[Fact]) -> Failure:
    """Who says that its connection to another node broke was there; the node at the other end was not, or not whole.

    Addresses are those of the profile's nodes (``node.hears`` has each): torch prints others that nobody has.
    """
    line = failure.cause.text if failure.cause is not None else ""
    if failure.kind != "collective-failed" or not _BROKEN.search(line):
        return failure
    up = {f.node for f in facts if f.name == "node.left_up"}
    addresses = {f.node: str(f.detail.get("address")) for f in facts if f.name == "node.hears"}
    peers = [n for n, address in addresses.items() if n != failure.node and _whole(address).search(line)]
    if len(peers) != 1 or failure.node in up:
        return failure
    (peer,) = peers
    text = f"node {failure.node} lost its connection to node {peer} ({addresses[peer]})"
    return replace(failure, node=peer, rank=None, summary=f"{failure.summary}: {text}")


def _whole(address: str) -> re.Pattern[str]:
    """Not in a longer one: 10.0.0.1 does not stand in 10.0.0.12."""
    return re.compile(rf"(?<![0-9A-Fa-f.]){re.escape(address)}(?![0-9A-Fa-f.])")


def with_memory(failure: Failure, facts: Sequence[Fact]) -> Failure:
    """A process that died while memory was at its end is the victim of that: killed while the out-of-memory killer was
    at work (a rank in a container, whose first process ends on its own account); or by SIGBUS, or unseen, while
    /dev/shm was full (what is mapped there is only taken when it is written). What another node lacked does not count.
    """
    from pytest_startup.engines.failure_help import advice

    near = [f for f in facts if f.node is None or failure.node in (None, f.node)]
    struck = [f for name in ("container.oom_killed", "host.oom_kill") for f in near if f.name == name]
    full = [f for f in near if f.name == "host.shm_free" and _is_full(f)]
    by = re.search(r"killed by (SIG\w+)", failure.summary)
    if struck and failure.kind in ("killed", "process-died") and (by is None or by.group(1) == "SIGKILL"):
        kind, why = "out-of-host-memory", struck[0]
    elif full and (failure.kind == "process-died" or (failure.kind == "crashed" and "SIGBUS" in failure.summary)):
        kind, why = "out-of-shared-memory", full[0]
    elif failure.kind == "crashed" and "SIGBUS" in failure.summary:
        seen = next((f": {f.evidence.text} at the least" for f in near if "bytes" in f.detail), "")
        return replace(
            failure, helps=(f"room in /dev/shm: who writes to a full one is ended by SIGBUS{seen}", *failure.helps)
        )
    else:
        return failure
    helps, no_help = advice(kind, failure.phase)
    summary = f"{failure.summary}; {why.evidence.text}"
    return replace(failure, kind=kind, summary=summary, helps=helps, no_help=no_help)


def _is_full(fact: Fact) -> bool:
    free = fact.detail.get("bytes")
    return isinstance(free, int) and free < SHM_FULL
