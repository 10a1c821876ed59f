"""One node of a start: its engine's process there, seen and ended through the link."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_startup.launch.base import Exit, LaunchError, NodeLog
from pytest_startup.launch.exits import ASKED, told
from pytest_startup.launch.logfiles import LogFiles
from pytest_startup.launch.memory import SHM
from pytest_startup.launch.nodes.facts import Figures, node_facts
from pytest_startup.launch.nodes.link import NodeLink
from pytest_startup.launch.nodes.peers import deaf
from pytest_startup.launch.nodes.reach import Access
from pytest_startup.launch.nodes.rendezvous import Stand
from pytest_startup.profile.nodes import Node
from pytest_startup.record import Evidence, Fact, Leftover
from pytest_startup.record_json import fact_from_json
from pytest_startup.redact import Redactor

#: Seconds after which a keeper that hears nothing ends its engine. Longer than our own patience with a silent link, so
#: that a node is always given up here first.
LEASE = 10.0
#: Seconds for a keeper to start its engine, once its steps are done.
STARTS_WITHIN = 60.0
#: Seconds for which the last line may lie unfinished before it is written as it is.
_QUIET = 0.25


class Member:
    """``start`` may come long after the object: logs exist from the beginning. ``news`` is called at every change."""

    def __init__(self, node: Node, access: Access, folder: Path, redactor: Redactor, news: Callable[[], None]) -> None:
        self.node = node
        self.access = access
        self.stand = Stand()
        self.started_at: float | None = None
        self.link: NodeLink | None = None
        self.host: list[Fact] = []
        self.left_up: str | None = None  # the start in which it was launched, if that is not this one
        self._redactor = redactor
        self._news = news
        self._argv: tuple[str, ...] = ()
        self._spec: Mapping[str, Any] = {}
        self._exit: Exit | None = None
        self._left: list[Leftover] | None = None
        self._told_to_stop = False
        self._computing: list[list[str]] | None = None  # on its GPUs, before it was started
        self._files: LogFiles | None = None
        self._fed_at = 0.0
        self._launched_at = 0.0
        self._introductions = 0
        self.open_log(folder, 0.0)

    def open_log(self, folder: Path, launched_at: float) -> None:
        """Write what comes from now on into ``folder``; times count from ``launched_at``. Raises LaunchError."""
        place = folder / self.node.name
        try:
            place.mkdir(parents=True, exist_ok=True)
            files = LogFiles(place / "engine.log", place / "lines.tsv", self._redactor.stream())
        except OSError as error:
            raise LaunchError(f"the artifacts folder {place} can't be used: {error.strerror}") from None
        before, self._files = self._files, files
        if before is not None:
            before.close()
        self.log = NodeLog(self.node.name, place / "engine.log", place / "lines.tsv")
        self._launched_at = launched_at

    def start(self, spec: Mapping[str, Any]) -> float:
        """Start the engine; when it was launched, on our clock. Raises LaunchError."""
        self._spec = spec
        self._argv = tuple(self._redactor.argv(spec["shown"]))
        link = self.access.link(alone=bool(spec["alone"]))
        self.host = [
            _of_node(fact_from_json(f), self.node.name)
            for f in link.errand("host", 30.0, {"checkpoint": [str(p) for p in self.node.checkpoint]})
        ]
        if spec["proved_gpus"]:
            self._computing = link.errand("computing", 60.0, {"gpus": spec["proved_gpus"]})
        link.log, link.news = self._take, self._changed
        self.link = link
        self.started_at = link.keep(
            {
                **{k: v for k, v in spec.items() if k not in ("shown", "proved_gpus")},
                "lease": LEASE if self.node.reach.kind == "ssh" else 0.0,
            },
            STARTS_WITHIN + sum(step["within"] for step in spec["steps"]),
        )
        self._launched_at = self._launched_at or self.started_at
        return self.started_at

    def go_on(self, folder: Path, news: Callable[[], None]) -> None:
        """Run on under a new start, with a log of its own."""
        self._news = news
        self.left_up = str(self._spec["start"])
        self.stand = Stand(kept=True)
        self._introductions += 1  # none of what it hears counts until it is told of its new peers
        if self.link is not None:
            with self.link.receiving:
                self.open_log(folder, time.monotonic())

    def clock_from(self, launched_at: float) -> None:
        """All times of this start count from here."""
        self._launched_at = launched_at

    def ended(self) -> Exit | None:
        """The end of the engine there, of one of its ranks, or of our sight of it. The first one stays."""
        link = self.link
        if self._exit is None and link is not None and self.started_at is not None:
            self._exit = self._look(link)
        return self._exit

    def missed(self) -> Mapping[str, float]:
        """The peers that this node hears no more, and since when (seconds since launch)."""
        silent: dict[str, float] = {}
        met = 0
        for what, at, event in list(self.link.happened) if self.link is not None else ():
            if what == "introduced":
                met, silent = met + 1, {}
            elif what == "missed":
                silent[event["node"]] = at - self._launched_at - event["seconds"]
            elif what == "heard":
                silent.pop(event["node"], None)
        if met < self._introductions or not met:  # what it says is of the peers before
            return {}
        return silent

    def deaf(self) -> bool:
        """It was told of its peers a while ago, and has heard none."""
        return self.link is not None and deaf(list(self.link.happened), time.monotonic())

    def tell_peers(self, peers: Mapping[str, list[object]]) -> None:
        if self.link is not None:
            self._introductions = sum(1 for what, _, _ in self.link.happened if what == "introduced") + 1
            self.link.send({"do": "peers", "peers": peers})

    def peer_port(self) -> int | None:
        started = self.link.event("started") if self.link is not None else None
        port = (started or {}).get("peer_port")
        return None if port is None else int(port)

    def listens(self, port: int) -> tuple[str, str]:
        """Who listens on ``port`` there: (ours, foreign or unknown; why)."""
        link = self.link
        if link is None or link.lost is not None:
            return "unknown", f"node {self.node.name} can't be asked"
        with link.asking:
            link.forget_event("listens")
            link.send({"do": "listens", "port": port})
            link.wait(("listens",), 5.0)
            found = link.event("listens") or {"who": "unknown", "text": "the node did not answer"}
        return str(found["who"]), f"node {self.node.name}: {found['text']}"

    def facts(self) -> list[Fact]:
        """See ``facts``; and ``log.incomplete`` where some of the log was lost. Takes ≤ 1 s."""
        link = self.link
        if link is None or self.started_at is None:
            return []
        with link.asking:
            figures = link.event("ended") or (link.lost is None and link.ask("facts", 1.0)) or link.event("facts") or {}
        seen = Figures(figures, self.started_at - self._launched_at)
        name = self.node.name
        out = node_facts(name, self.node.address, self._argv, link, seen, self._redactor)
        if self.left_up is not None:
            text = f"node {name} was left up: its process of {self.left_up} goes on, nothing was started there"
            out.append(Fact("node.left_up", self.left_up, Evidence("process", "launcher", text, node=name), node=name))
        lost = figures.get("log_error") or (self._files.error if self._files else None)
        if lost:
            evidence = Evidence("process", "engine.log", str(lost), node=name)
            out.append(Fact("log.incomplete", str(lost), evidence, node=name))
        return out

    def keep(self) -> bool:
        """Its engine is to stay up when the link ends; False: its keeper did not say that it will."""
        link = self.link
        return link is not None and link.lost is None and link.ask("keep", 5.0) is not None

    def forget(self) -> None:
        """After ``keep``, of all nodes: nothing of it is ours any more. Its log ends here."""
        self._left = []
        if self.link is not None:
            self.link.forget()
            with self.link.receiving:
                if self._files is not None:
                    self._files.close()
                    self._files = None

    def hurry(self, release: float) -> None:
        """KILL at once what a stop that has begun still waits for."""
        if self._told_to_stop and self.link is not None:
            self.link.send({"do": "stop", "limit": 0.0, "give_up": release})

    def stop(self, limit: float, release: float) -> list[Leftover]:
        """End the engine there and prove it gone. Idempotent; bounded by ``limit`` and ``release``."""
        if self._left is None:
            self._left = self._stop(limit, release)
        return self._left

    def _stop(self, limit: float, release: float) -> list[Leftover]:
        link, name = self.link, self.node.name
        begin = time.monotonic()
        if link is None:
            return []
        if self.started_at is None:
            return self._broken_off(link, begin)
        self.ended()  # while the events are fresh: the reason of an end that came before the stop
        if link.lost is None:
            if self._spec["docker"]:  # the removal of a container may hold our part there up
                link.silence += 90.0
            self._told_to_stop = link.send({"do": "stop", "limit": limit, "give_up": release})
            end = time.monotonic() + limit + release + 10.0
            while link.event("ended") is None and link.lost is None and time.monotonic() < end:
                link.wait(("ended", "fault"), 0.25)
                if link.event("fault") is not None:
                    break
        ended = link.event("ended")
        left = self._gone(ended, begin) if ended is not None else self._unseen(link, begin, limit + release)
        link.close()
        if self._files is not None:
            self._files.close()
            self._files = None
        if ended is not None or all(one.released for one in left):
            left += self._ports(begin, release) + self._gpus(begin, release)
        return left or [Leftover("pid", f"{self._argv[0]}", True, round(time.monotonic() - begin, 3), name)]

    def _broken_off(self, link: NodeLink, begin: float) -> list[Leftover]:
        """Stopped before its engine was started, maybe in the middle of a step: what the steps made goes."""
        link.kill()
        if not self._spec["docker"]:
            return []
        try:
            rows = self.access.errand("remove", limit=100.0, docker=self._spec["docker"], label=self._spec["label"])
        except LaunchError as error:
            rows = [["", False, str(error)]]
        seconds = round(time.monotonic() - begin, 3)
        found = [("container", f"{one} {why}".strip(), gone) for one, gone, why in rows]
        found = found or [("container", "none of ours is there", True)]  # its keeper has removed what a step had made
        return [Leftover(kind, what, gone, seconds, self.node.name) for kind, what, gone in found]

    def _gone(self, ended: Mapping[str, Any], begin: float) -> list[Leftover]:
        seconds = round(time.monotonic() - begin, 3)
        left = {int(pid): name for pid, _, name in ended["left"]}
        seen = {int(pid): name for pid, _, name in ended["ended"]} | left
        out = [
            Leftover("pid", f"{p} {self._redactor.text(n)}", p not in left, seconds, self.node.name)
            for p, n in seen.items()
        ]
        for one, gone, why in ended.get("containers", ()):
            out.append(Leftover("container", f"{one} {why}".strip(), gone, seconds, self.node.name))
        for one in ended["shm"]:
            removed = " (left behind by the engine; removed)" if one in ended["shm_removed"] else ""
            out.append(Leftover("shm", f"{SHM}/{one}{removed}", one not in ended["shm_held"], seconds, self.node.name))
        return out

    def _unseen(self, link: NodeLink, begin: float, within: float) -> list[Leftover]:
        """The link is lost, and the keeper there ends the engine by itself: see whether it has, if the node answers."""
        why = link.lost or "the keeper gave no answer"
        link.kill()
        name = self.node.name
        try:
            done = self.access.errand(
                "finish", limit=within + 10, run_id=self._spec["run_id"], start=self._spec["start"], within=within
            )
        except LaunchError as error:
            text = (
                f"node {name} can't be reached ({why}; {error}): its keeper ends the engine by itself within "
                f"{LEASE + within:.0f} s, and the next run looks there for leftovers"
            )
            return [Leftover("node", text, False, round(time.monotonic() - begin, 3), name)]
        seconds = round(time.monotonic() - begin, 3)
        return [Leftover(kind, what, gone, seconds, name) for kind, what, gone in done]

    def _ports(self, begin: float, release: float) -> list[Leftover]:
        ports = sorted({*self.node.ports, *((int(self._spec["port"]),) if self._spec["port"] else ())})
        address, name = self.node.address, self.node.name
        if not ports:
            return []
        try:
            rows = self.access.errand("released", limit=release + 20, address=address, ports=ports, within=release)
        except LaunchError as error:
            return [Leftover("port", f"{address}: {error}", False, round(time.monotonic() - begin, 3), name)]
        return [
            Leftover(
                "port",
                f"{address}:{r['port']}" + (f", held by {r['taken']}" if r["taken"] else ""),
                r["taken"] is None,
                round(time.monotonic() - begin, 3),
                name,
            )
            for r in rows
        ]

    def _gpus(self, begin: float, release: float) -> list[Leftover]:
        """Nobody computes on this node's GPUs who did not before the start; nothing, where it can't be asked."""
        gpus, before = self._spec["proved_gpus"], self._computing
        if not gpus or before is None:
            return []
        name, pids = self.node.name, [pid for pid, _ in before]
        try:
            held = self.access.errand("gpus_released", limit=release + 60, gpus=gpus, before=pids, within=release)
        except LaunchError as error:
            held = [f"GPUs can't be asked: {error}"]
        if held is None:
            held = ["GPUs can't be seen any more"]
        seconds = round(time.monotonic() - begin, 3)
        free = [Leftover("gpu-memory", f"GPU {gpu}", True, seconds, name) for gpu in gpus]
        return [Leftover("gpu-memory", text, False, seconds, name) for text in held] or free

    def _look(self, link: NodeLink) -> Exit | None:
        name, after = self.node.name, time.monotonic() - self._launched_at
        event = link.event("exit")
        rank = next((e for what, _, e in link.happened if what == "rank"), None)
        status = rank["status"] if rank is not None else None
        code = None if status is None else os.waitstatus_to_exitcode(status)
        struck = code is None or (code < 0 and -code not in ASKED)
        # A rank that was asked to end, or ended by itself, says less than the end of the first process.
        if rank is not None and (struck or event is None):
            text = f"rank process {rank['pid']} ({self._redactor.text(rank['name'])}) of node {name} {told(status)}"
            return Exit(name, code, "killed" if struck else "exited", text)
        if event is not None:
            code = int(event["code"])
            after = link.ours(float(event["at"])) - self._launched_at
            since = f", left up since {self.left_up}" if self.left_up else ""
            main = f"the engine's process on node {name} (pid {(link.event('started') or {}).get('pid')}{since})"
            signalled = code > 128 and self._spec["docker"] and code - 128 in set(signal.Signals)
            if signalled:  # so the docker command tells of a signal
                return Exit(
                    name,
                    code,
                    "killed",
                    f"{main} was killed by {_signal(code - 128)} (exit code {code}) after {after:.1f} s",
                )
            if event.get("daemon"):
                said = self._redactor.text(str(event["daemon"]))
                text = f"the container engine of node {name} went away {after:.1f} s after launch: {said}"
                return Exit(name, code, "daemon-lost", text)
            if code >= 0:
                return Exit(name, code, "exited", f"{main} ended with exit code {code} after {after:.1f} s")
            if code == -signal.SIGKILL and event.get("oom"):
                text = f"{main} was killed after {after:.1f} s, and the kernel's out-of-memory killer was at work there"
                return Exit(name, code, "oom-killed", text)
            return Exit(name, code, "killed", f"{main} was killed by {_signal(-code)} after {after:.1f} s")
        why = link.lost
        if why is not None:
            text = f"node {name} is lost after {after:.1f} s: {why}"
            return Exit(name, None, "node-lost", text)
        return None

    def _take(self, data: bytes, at: float) -> None:
        seconds = max(0.0, at - (self._launched_at or at))
        self._fed_at = time.monotonic()
        self.stand.feed(data, seconds)
        if self._files is not None:
            self._files.feed(data, seconds)

    def _changed(self) -> None:
        self._news()

    def flush(self) -> None:
        """Write an unfinished last line, if nothing has come for a moment."""
        link = self.link
        if link is None or self._files is None or time.monotonic() - self._fed_at < _QUIET:
            return
        with link.receiving:
            if self._files is not None:
                self._files.flush()


def _of_node(fact: Fact, node: str) -> Fact:
    return replace(fact, node=node, evidence=replace(fact.evidence, node=node))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
