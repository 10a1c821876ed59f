"""Do the nodes hear each other? Small datagrams over the addresses that the engine itself uses, twice a second.

The link to a node may be fine while the network between the nodes is cut: an engine then answers ``/health`` with 200
for minutes. A peer is only missed once it has been heard: where datagrams are filtered, nothing is concluded.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

INTERVAL = 0.5
#: Seconds without a word after which a peer that was heard before is missed: six datagrams in a row.
SILENCE = 3.5
#: Seconds of a silence after which all nodes that can tell of it have done so.
SETTLED = SILENCE + 2 * INTERVAL
#: Seconds after which a node that was told of its peers and heard none is deaf: something filters the datagrams.
PATIENCE = 10.0


def deaf(happened: Sequence[tuple[str, float, Mapping[str, object]]], now: float) -> bool:
    """Has a node heard nobody since it was last told of its peers? ``happened``: events of its link with their time."""
    told = [at for what, at, _ in happened if what == "introduced"]
    if not told or now - told[-1] < PATIENCE:
        return False
    return not any(what == "heard" and at >= told[-1] for what, at, _ in happened)


@dataclass(frozen=True)
class Cut:
    """A node that is cut off from ``others`` since ``since`` seconds after the launch."""

    node: str
    others: tuple[str, ...]
    since: float


def cut_off(misses: Sequence[tuple[str, str, float]], nodes: Sequence[str], api: str, now: float) -> Cut | None:
    """Which node is it? ``misses``: (who misses, whom, since when); each node tells only of its own silences.

    A node that is cut off is in every pair that is silent, whoever tells of them. Of three or more nodes the tellers
    are waited for as long as they may differ. Of two the one that serves the API is the near side, as it is in a tie.
    """
    pairs: dict[frozenset[str], float] = {}
    for witness, name, since in misses:
        pair = frozenset((witness, name))
        pairs[pair] = min(since, pairs.get(pair, since))
    if not pairs:
        return None
    order = [n for n in nodes if n != api] + [api]
    partners = {n: sorted({o for pair in pairs if n in pair for o in pair - {n}}, key=nodes.index) for n in order}
    most = max(order, key=lambda n: len(partners[n]))  # the first of equals
    since = min(since for pair, since in pairs.items() if most in pair)
    if len(partners[most]) < len(nodes) - 1 and now - since < SETTLED:
        return None
    return Cut(most, tuple(partners[most]), since)


class Peers:
    """This node's end. ``missed(name, seconds)`` is called once for each silence, ``heard(name)`` when it ends, and the
    first time."""

    def __init__(self, address: str, key: str, missed: Callable[[str, float], None], heard: Callable[[str], None]):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind((address, 0))
        self._socket.settimeout(INTERVAL / 2)
        self.port = int(self._socket.getsockname()[1])
        self._key = key
        self._missed = missed
        self._heard = heard
        self._lock = threading.Lock()
        self._there: dict[str, tuple[str, int]] = {}
        self._last: dict[str, float] = {}
        self._silent: set[str] = set()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self, me: str, peers: Mapping[str, Sequence[object]]) -> None:
        """``peers``: name → (address, port). Again when one has been restarted: it must then be heard anew."""
        with self._lock:
            self._there = {name: (str(where[0]), int(str(where[1]))) for name, where in peers.items() if name != me}
            self._last.clear()
            for name in sorted(self._silent):
                self._heard(name)
            self._silent.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(f"{self._key} {me}".encode(),), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self, word: bytes) -> None:
        due = 0.0
        while not self._ended.is_set():
            if time.monotonic() >= due:
                due = time.monotonic() + INTERVAL
                for where in list(self._there.values()):
                    with contextlib.suppress(OSError):  # no route while the network is cut
                        self._socket.sendto(word, where)
            with contextlib.suppress(OSError):
                self._take(*self._socket.recvfrom(512))
            self._look()
        self._socket.close()

    def _take(self, data: bytes, sender: tuple[str, int]) -> None:
        key, _, name = data.decode("utf-8", "replace").partition(" ")
        with self._lock:
            if key == self._key and self._there.get(name, ("", 0))[1] == sender[1]:
                if name in self._silent or name not in self._last:
                    self._silent.discard(name)
                    self._heard(name)
                self._last[name] = time.monotonic()

    def _look(self) -> None:
        now = time.monotonic()
        with self._lock:
            for name, heard in self._last.items():
                if name not in self._silent and now - heard > SILENCE:
                    self._silent.add(name)
                    self._missed(name, now - heard)
