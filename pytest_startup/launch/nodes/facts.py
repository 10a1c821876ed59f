"""The facts of one node of a start: what was started there, its memory, its clock, whom it hears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_startup.launch.memory import Peak
from pytest_startup.launch.watch_facts import watch_facts
from pytest_startup.record import JSON, Evidence, Fact
from pytest_startup.record_json import fact_from_json

if TYPE_CHECKING:
    from pytest_startup.launch.nodes.link import NodeLink
    from pytest_startup.redact import Redactor


@dataclass(frozen=True)
class Figures:
    """What a keeper has told of its engine. ``shift``: seconds from our launch to that of this node."""

    data: Mapping[str, Any]
    shift: float

    @property
    def peak(self) -> Peak | None:
        peak = self.data.get("peak")
        return None if peak is None else Peak(**{**peak, "seconds": peak["seconds"] + self.shift})

    @property
    def lost(self) -> list[list[Any]]:
        return [
            [pid, name, round(seconds + self.shift, 3), how] for pid, name, seconds, how in self.data.get("lost", ())
        ]

    def memory(self, node: str) -> list[Fact]:
        """What was sampled there: ``gpu.*`` and ``host.memory_available``."""
        return [self._here(fact_from_json(row), node) for row in self.data.get("memory", ())]

    def _here(self, fact: Fact, node: str) -> Fact:
        at = fact.evidence.seconds
        seconds = None if at is None else round(at + self.shift, 3)
        return replace(fact, node=node, evidence=replace(fact.evidence, node=node, seconds=seconds))


def node_facts(
    node: str,
    address: str,
    argv: Sequence[str],
    link: NodeLink,
    figures: Figures,
    redactor: Redactor,
) -> list[Fact]:
    """``process.argv`` (as the kernel there shows it while the engine runs, else as it was launched), ``process.pid``,
    ``node.clock_offset`` (s), ``node.hears``, ``host.memory_peak``, ``host.memory_available`` (GiB, before, lowest,
    after), ``gpu.memory_used`` (GiB, before, peak, after) or ``gpu.memory_unknown``, ``process.ended``,
    ``host.oom_kill``."""

    def fact(
        name: str,
        value: JSON,
        where: str,
        text: str,
        unit: str | None = None,
        **detail: JSON,
    ) -> Fact:
        return Fact(name, value, Evidence("process", where, text[:400], node=node), unit=unit, node=node, detail=detail)

    pid = (link.event("started") or {}).get("pid")
    serves, shown = figures.data.get("shown") or (None, argv)
    words = list[JSON](argv if serves is None else redactor.argv(shown))
    where = "argv" if serves is None else f"/proc/{serves}/cmdline"
    out = [
        fact("process.argv", words, where, " ".join(map(str, words))),
        fact("process.pid", pid, f"/proc/{pid}", argv[0]),
    ]
    if link.error < 1e6:
        text = f"its monotonic clock less ours, measured over the link to within {link.error * 1000:.1f} ms"
        out.append(fact("node.clock_offset", round(link.offset, 4), "ping", text, "s"))
    names = sorted({str(e["node"]) for what, _, e in list(link.happened) if what == "heard"})
    heard: list[JSON] = [*names]
    text = f"hears {', '.join(names)} over {address}" if heard else "hears no other node: is UDP filtered?"
    out.append(fact("node.hears", heard, "datagrams between the nodes", text, address=address))
    out += figures.memory(node)
    out += container_facts(node, link.event("container"))
    killed = (int(figures.data.get("oom", 0)), f"node {node}")
    return out + watch_facts(node, figures.peak, figures.lost, killed, redactor.text, figures.data.get("group_peak"))


def container_facts(node: str, seen: Mapping[str, Any] | None) -> list[Fact]:
    """``container.image`` (the id that runs, with its repo digests), ``.id``, ``.name``; ``file.sha256`` of each
    overlay file as the container sees it, or ``file.unreadable``."""
    if seen is None:
        return []
    where = f"container {seen['id'][:12]}"

    def fact(name: str, value: JSON, text: str, place: str = where, **detail: JSON) -> Fact:
        return Fact(name, value, Evidence("container", place, text[:400], node=node), node=node, detail=detail)

    out = [
        fact("container.image", seen["image"], f"image {seen['image']}", digests=list(seen["digests"])),
        fact("container.id", seen["id"], seen["id"]),
        fact("container.name", seen["name"], seen["name"]),
    ]
    for path, (digest, why) in seen["files"].items():
        place = f"{where}:{path}"
        if digest is not None:
            out.append(fact("file.sha256", digest, f"sha256 {digest} in the container", place, path=path))
        else:
            out.append(fact("file.unreadable", path, str(why), place, path=path))
    return out
