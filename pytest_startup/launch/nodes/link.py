"""The line between pytest and our part on a node: a keeper's line that also carries its log and its clock.

Whoever speaks last was heard last: every line that arrives is a sign of life, and one is asked for each half second.
"""

from __future__ import annotations

import base64
import contextlib
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from pytest_startup.launch.base import LaunchError
from pytest_startup.launch.nodes import boot as nodes_boot
from pytest_startup.launch.nodes.steps import StepFailed
from pytest_startup.launch.process.link import KeeperLink

PING = 0.5
#: A Python on the node is up within a second; a loaded host, or a login over several hops, gets this long.
_LIMIT = 45.0


class NodeLink(KeeperLink):
    """``log(data, seconds)`` gets what the engine prints, ``seconds`` on *our* monotonic clock; ``news`` is called at
    every event. ``happened`` lists ``rank``, ``missed``, ``heard`` and ``introduced`` in order, with our time."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, silence: float, errors: IO[bytes]) -> None:
        self.name = name
        self.silence = silence
        self.heard_at = time.monotonic()
        self.happened: list[tuple[str, float, dict[str, Any]]] = []
        self.log: Callable[[bytes, float], None] | None = None
        self.news: Callable[[], None] | None = None
        self.offset = 0.0  # the node's monotonic clock less ours
        self.error = float("inf")  # by how much the offset may be wrong
        self._errors = errors
        self._started_there = 0.0
        self._pinging = threading.Event()
        self.asking = threading.Lock()
        super().__init__(process)

    @classmethod
    def open(cls, argv: list[str], name: str, silence: float) -> NodeLink:
        """Run our part with ``argv`` and wait until it answers. Raises LaunchError with what was said instead."""
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the link
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            errors.close()
            raise LaunchError(f"{argv[0]} can't be run: {error.strerror}") from None
        link = cls(process, name, silence, errors)
        link.write(nodes_boot.payload())
        link.wait(("hello", "old", "fault"), _LIMIT)
        if link.event("hello") is None:
            old, fault = link.event("old"), link.event("fault")
            link.end()
            if old is not None:
                raise LaunchError(f"its Python is {old['version']}; expected 3.10 or later (nodes.{name}.python)")
            said = str(fault["text"]) if fault is not None else link.said()
            errors.close()
            raise LaunchError(said or f"no answer within {_LIMIT:.0f} s")
        for _ in range(3):
            link.clock()
        return link

    def clock(self) -> dict[str, Any] | None:
        """Ask for the time there (``wall``); keeps the best estimate of how the clocks differ."""
        self.forget_event("clock")
        self.send({"do": "clock", "t": time.monotonic()})
        self.wait(("clock",), 5.0)
        return self.event("clock")

    def errand(self, do: str, limit: float, asked: Mapping[str, object]) -> Any:
        """Raises LaunchError with the node's own words, or because there was no answer within ``limit`` seconds."""
        self.forget_event("done")
        self.forget_event("failed")
        self.send({"do": do, **asked})
        self.wait(("done", "failed", "fault"), limit)
        done = self.event("done")
        if done is not None:
            return done["answer"]
        failed = self.event("failed") or self.event("fault")
        text = str(failed["text"]) if failed is not None else self.said() or f"no answer to {do!r} within {limit:.0f} s"
        raise LaunchError(f"node {self.name}: {text}")

    def keep(self, spec: Mapping[str, object], limit: float) -> float:
        """Start an engine there, steps included; returns when it was launched, on our clock.

        Raises StepFailed or LaunchError.
        """
        self.send({"do": "keep", **spec})
        self.wait(("started", "failed", "fault"), limit)
        started = self.event("started")
        if started is None:
            failed = self.event("failed") or self.event("fault")
            text = failed["text"] if failed is not None else self.said() or f"no answer within {limit:.0f} s"
            self.close()
            failure = StepFailed if failed is not None and failed.get("step") else LaunchError
            raise failure(f"node {self.name}: {text}")
        self.heard_at = time.monotonic()
        threading.Thread(target=self._ping, name=f"pytest-startup-{self.name}", daemon=True).start()
        return self.ours(self._started_there)

    def ours(self, there: float) -> float:
        """A time of the node's monotonic clock on ours."""
        return there - self.offset

    @property
    def receiving(self) -> threading.Condition:
        """Held while an event is taken in: whoever holds it works between two of them."""
        return self._news

    def forget_event(self, name: str) -> None:
        with self._news:
            self._events.pop(name, None)

    @property
    def lost(self) -> str | None:
        """Why nothing more can be expected of the node; None while it answers."""
        if self.gone:
            return None if self.event("ended") is not None else self.said() or "its link has ended"
        silent = time.monotonic() - self.heard_at
        return f"nothing heard for {silent:.1f} s" if self._pinging.is_set() and silent > self.silence else None

    def said(self) -> str:
        """What the way there (ssh, nsenter) has said itself: its last lines on one line."""
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            lines = [x.strip() for x in self._errors.read(65536).decode("utf-8", "replace").splitlines() if x.strip()]
            return "; ".join(lines[-3:])
        return ""

    def write(self, data: bytes) -> None:
        """Bytes that are not a command."""
        with contextlib.suppress(OSError, ValueError), self._write_lock:
            if self._process.stdin is not None:
                self._process.stdin.write(data)
                self._process.stdin.flush()

    def forget(self) -> None:
        """As of a keeper of this host; one of a local node is our own child, and must not be ended with its link."""
        self._pinging.clear()
        super().forget()
        self._errors.close()

    def close(self) -> None:
        self._pinging.clear()
        super().close()
        self.kill()

    def kill(self) -> None:
        """End our own side of it, whatever the other side does. Idempotent."""
        self.end()
        self._errors.close()

    def end(self) -> None:
        """As ``kill``; what was said can still be read."""
        self._pinging.clear()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self.wait((), 5.0)

    def __enter__(self) -> NodeLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ping(self) -> None:
        self._pinging.set()
        while self._pinging.is_set() and not self.gone:
            self.send({"do": "ping", "t": time.monotonic()})
            time.sleep(PING)
            if self.lost is not None and self.news is not None:
                self.news()

    def _take(self, name: str, event: dict[str, Any]) -> None:
        now = time.monotonic()
        self.heard_at = now
        if name == "log":
            if self.log is not None:
                self.log(base64.b64decode(event["data"]), self.ours(self._started_there + event["seconds"]))
        elif name in ("pong", "clock"):
            trip = now - event["t"]
            if trip / 2 < self.error:
                self.error = trip / 2
                self.offset = event["mono"] - (now + event["t"]) / 2
            if name == "clock":
                self._events[name] = {**event, "trip": trip}
        elif name in ("rank", "missed", "heard", "introduced"):
            self.happened.append((name, now, event))
        else:
            if name == "started":
                self._started_there = float(event["at"])
            self._events[name] = event
        if self.news is not None and name not in ("log", "pong"):
            self.news()

    def _receive(self) -> None:
        super()._receive()
        if self.news is not None:
            self.news()
