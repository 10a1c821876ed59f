"""A running engine over several nodes: started in order, watched as one, and ended as one."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from pytest_startup.launch.base import Exit, LaunchError, NodeLog, StartPlan
from pytest_startup.launch.nodes import peers as nodes_peers
from pytest_startup.launch.nodes import rendezvous as nodes_rendezvous
from pytest_startup.launch.nodes.member import Member
from pytest_startup.launch.nodes.steps import StepFailed
from pytest_startup.observe.sources import Listening
from pytest_startup.profile.model import Deadlines
from pytest_startup.profile.nodes import StartWhen
from pytest_startup.record import Evidence, Fact, Leftover

#: The longest time between two looks at what nobody reports: silence, deadlines of conditions.
LOOK = 0.25
Spec = Callable[[Member], Mapping[str, Any]]


class NodesRunning:
    """One start over several nodes. See ``launch.base.Running``.

    ``members`` are in the order of their start; those in ``up`` run already (only the others were restarted).
    """

    def __init__(
        self,
        plan: StartPlan,
        members: Sequence[Member],
        spec: Spec,
        news: threading.Event,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        self._plan = plan
        self._members = {m.node.name: m for m in members}
        self._spec = spec
        self._news = news
        self._notice = notice
        self._exit: Exit | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._left: list[Leftover] | None = None
        self._hurried = False
        self._spared: frozenset[str] = frozenset()
        self.kept = False
        self._waiting = [m for m in members if m.started_at is None]
        self._failed: Exit | None = None
        self._launched_at = time.monotonic()
        self._fresh = {m.node.name for m in self._waiting}
        self._start()

    @property
    def base_url(self) -> str:
        address = self.api.node.address
        return f"http://{f'[{address}]' if ':' in address else address}:{self._plan.port}"

    @property
    def deadlines(self) -> Deadlines:
        return self._plan.profile.deadlines

    @property
    def hosts(self) -> Collection[str]:
        """Where requests of ours may go besides this machine: the address of the node that serves the API."""
        return (self.api.node.address,)

    @property
    def api(self) -> Member:
        return next(m for m in self._members.values() if m.node.api)

    @property
    def logs(self) -> Sequence[NodeLog]:
        return [m.log for m in self._members.values()]

    @property
    def launched_at(self) -> float:
        return self._launched_at

    def owner(self) -> Listening:
        """Is the server that answers ours? Asked on its node."""
        who, text = self.api.listens(self._plan.port)
        return Listening(who, text)

    def exited(self) -> Exit | None:
        """The first end of any node, however it ended; of any rank process; of our sight of a node; of the nodes' sight
        of each other; or a node that is not met at the rendezvous in time."""
        with self._lock:
            if self._exit is None and not self._stopping.is_set():
                self._exit = self._failed or self._first_end()
            return self._exit

    def wait_exit(self, timeout: float) -> Exit | None:
        end = time.monotonic() + timeout
        while True:
            self._news.clear()
            for member in self._members.values():
                member.flush()
            self._tell_deaf()
            ended = self.exited()
            rest = end - time.monotonic()
            if ended is not None or rest <= 0:
                return ended
            self._news.wait(min(rest, LOOK))

    def facts(self) -> Sequence[Fact]:
        """Of every node, each with its name; and where each rank is expected."""
        out: list[Fact] = []
        for member in self._members.values():
            out += [*member.host, *member.facts()]
            if member.node.ranks:
                text = f"nodes.{member.node.name}.ranks of the profile"
                evidence = Evidence("process", "profile", text, node=member.node.name)
                out.append(Fact("node.ranks", list(member.node.ranks), evidence, node=member.node.name))
        return out

    def spare(self, names: Collection[str]) -> None:
        """These nodes are not stopped by the next ``stop``: the next start goes on with them."""
        self._spared = frozenset(names)

    def spared(self) -> dict[str, Member]:
        """The nodes that were to run on behalf of the next start; whether they do, ``ended`` tells."""
        return {n: m for n, m in self._members.items() if n in self._spared}

    def keep(self) -> bool:
        """See ``launch.base.Keeps``: all nodes stay up, or none."""
        members = list(self._members.values())
        if self.exited() is not None or any(m.started_at is None for m in members):
            return False
        self.kept = all(m.keep() for m in members)
        for member in members if self.kept else ():
            member.forget()
        return self.kept

    def stop(self) -> Sequence[Leftover]:
        """The API node first: it ends cleanly while its peers live; then the others, all at once, each with the whole
        allowance, since nothing in them reacts to the head's end. A node that waits at the rendezvous is KILLed: it
        ignores TERM there (vLLM 0.31)."""
        self.exited()
        self._stopping.set()
        with self._lock:
            if self._left is not None:
                return self._left
        deadlines = self._plan.profile.deadlines

        def end(member: Member) -> list[Leftover]:
            limit = 0.0 if member.stand.since is not None or self._hurried else deadlines.stop
            return member.stop(limit, deadlines.release)

        going = [m for n, m in self._members.items() if n not in self._spared]
        left: list[Leftover] = []
        interrupted = False
        for group in ([m for m in going if m.node.api], [m for m in going if not m.node.api]):
            if group:
                with ThreadPoolExecutor(len(group)) as pool:
                    ends = [pool.submit(end, member) for member in group]
                    try:
                        wait(ends)
                    except KeyboardInterrupt:  # not lost: the proof comes first
                        interrupted = True
                        self.hurry()
                    left += [one for ended in ends for one in ended.result()]
        with self._lock:
            self._left = left
            self._exit = self._exit or self.api.ended()
        if interrupted:
            raise KeyboardInterrupt
        return left

    def hurry(self) -> None:
        """See ``launch.base.Hurries``."""
        self._hurried = True
        for member in self._members.values():
            member.hurry(self._plan.profile.deadlines.release)

    def _start(self) -> None:
        """Start those that wait for nothing now; the others from threads, when their condition holds."""
        first = [m for m in self._waiting if not self._condition(m) and not m.node.steps]
        try:
            for number, member in enumerate(first):
                at = member.start(self._spec(member))
                self._waiting.remove(member)
                if number == 0:
                    self._launched_at = at
        except LaunchError:
            self._abandon()
            raise
        for member in self._members.values():
            member.clock_from(self._launched_at)
        self._introduce()
        if self._waiting:
            threading.Thread(target=self._start_rest, name="pytest-startup-nodes", daemon=True).start()

    def _condition(self, member: Member) -> StartWhen | None:
        """A node that was left up has been through what others would wait for."""
        when = member.node.start_when
        return when if when is not None and when.node in self._fresh else None

    def _abandon(self) -> None:
        self._stopping.set()
        for member in self._members.values():
            if member.started_at is not None:  # one that was left up, too: the start has failed
                member.stop(0.0, self._plan.profile.deadlines.release)

    def _start_rest(self) -> None:
        while self._waiting and not self._stopping.is_set():
            for member in list(self._waiting):
                when = self._condition(member)
                if when is None or self._holds(when):
                    self._waiting.remove(member)
                    threading.Thread(target=self._start_one, args=(member,), daemon=True).start()
                elif self._overdue(when):
                    what = (
                        f"a listener on port {when.port} of"
                        if when.port
                        else f"a line that matches {when.log!r} in the log of"
                    )
                    late = f"{what} {when.node} did not come within {when.within:g} s"
                    self._fail(member, f"node {member.node.name} is not started: {late}")
            self._stopping.wait(LOOK)
            if self.exited() is not None:
                return

    def _start_one(self, member: Member) -> None:
        """With its steps it may take minutes, and other nodes may wait for one of them."""
        try:
            member.start(self._spec(member))
            self._introduce()
        except LaunchError as error:
            self._fail(member, str(error), "step-failed" if isinstance(error, StepFailed) else "not-started")

    def _fail(self, member: Member, text: str, reason: str = "not-started") -> None:
        self._failed = self._failed or Exit(member.node.name, None, reason, text)
        self._news.set()

    def _holds(self, when: StartWhen) -> bool:
        other = self._members[when.node]
        if other.started_at is None:
            return False
        if when.port is not None:
            return other.listens(when.port)[0] in ("ours", "foreign")
        other.flush()
        pattern = re.compile((when.log or "").encode())
        with open(other.log.path, "rb") as file:
            return any(pattern.search(line) for line in file)

    def _overdue(self, when: StartWhen) -> bool:
        other = self._members[when.node]
        return other.started_at is not None and time.monotonic() - other.started_at > when.within

    def _introduce(self) -> None:
        """Tell the nodes of each other, once all run."""
        ports = {n: m.peer_port() for n, m in self._members.items()}
        if None in ports.values():  # not all run yet
            return
        peers: dict[str, list[object]] = {n: [self._members[n].node.address, p] for n, p in ports.items()}
        for member in self._members.values():
            member.tell_peers(peers)

    def _tell_deaf(self) -> None:
        """Once: nothing is concluded from a silence that was there from the beginning, and that should be known."""
        names = [n for n, m in self._members.items() if m.deaf()] if self._notice is not None else []
        if names and self._notice is not None:
            self._notice(
                f"{', '.join(names)}: no other node is heard there (is UDP between the nodes' addresses filtered?): "
                "a cut between them would only be seen by a completion"
            )
            self._notice = None

    def _first_end(self) -> Exit | None:
        ends = [(m, e) for m in self._members.values() if (e := m.ended()) is not None]
        if ends:
            return ends[0][1]
        return self._partition() or self._rendezvous()

    def _partition(self) -> Exit | None:
        """Nodes that hear each other no more."""
        misses = [(w, name, since) for w, m in self._members.items() for name, since in m.missed().items()]
        now = time.monotonic() - self._launched_at
        cut = nodes_peers.cut_off(misses, list(self._members), self.api.node.name, now)
        if cut is None:
            return None
        others = "the other nodes" if len(cut.others) == len(self._members) - 1 else ", ".join(cut.others)
        text = (
            f"node {cut.node} is cut off from {others} since {cut.since:.1f} s: nothing is heard between them over "
            f"{self._members[cut.node].node.address}"
        )
        return Exit(cut.node, None, "node-lost", text)

    def _rendezvous(self) -> Exit | None:
        stands = {n: m.stand for n, m in self._members.items()}
        now = time.monotonic() - self._launched_at
        started = [n for n, m in self._members.items() if m.started_at is not None]
        found = nodes_rendezvous.missing(stands, started, now, self._plan.profile.deadlines.peers)
        if found is None:
            return None
        limit = f"deadlines.peers is {self._plan.profile.deadlines.peers:g} s"
        return Exit(found.nodes[0], None, "not-met", f"{found.text}; {limit}")
