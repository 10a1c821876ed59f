"""What is known of the toy engine: its command line, its endpoints, and which lines of its log are facts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pytest_startup.engines.base import Endpoints, LogSummary, Progress
from pytest_startup.record import Evidence, Fact

RULES = {
    "engine.version": re.compile(r"toy engine (\S+)"),
    "kv.tokens": re.compile(r"cache holds (\d+) tokens"),
}


class ToyReader:
    """Reads the log as a stream: whole lines become facts, the last word is where the start stands."""

    def __init__(self) -> None:
        self.rest = b""
        self.number = 0
        self.ready_line: int | None = None
        self.facts: list[Fact] = []

    def feed(self, data: bytes, seconds: float | None = None, node: str | None = None) -> Sequence[Fact]:
        *lines, self.rest = (self.rest + data).split(b"\n")
        found = [fact for line in lines for fact in self.line(line.decode("utf-8", "replace"), seconds, node)]
        self.facts += found
        return found

    def line(self, text: str, seconds: float | None, node: str | None) -> Sequence[Fact]:
        self.number += 1
        if text == "serving":
            self.ready_line = self.number
        where = f"{node}/engine.log" if node else "engine.log"
        evidence = Evidence("log", where, text, self.number, node, seconds=seconds)
        found = []
        for name, pattern in RULES.items():
            match = pattern.search(text)
            if match:
                value = int(match[1]) if match[1].isdigit() else match[1]
                found.append(Fact(name, value, evidence, "tokens" if name == "kv.tokens" else None, node=node))
        return found

    def progress(self) -> Progress:
        return Progress("serving" if self.ready_line else "launch", None, 0.0, None)

    def close(self) -> tuple[Sequence[Fact], Sequence[LogSummary]]:
        ready = self.ready_line is not None
        return [], [
            LogSummary(
                0, 1, self.number, ready or None, self.ready_line, None, None, None, (), "serving" if ready else None
            )
        ]


class ToyDialect:
    name = "toy"
    endpoints = Endpoints(version=None, metrics=None)

    def serve_args(self, model: str, host: str, port: int, args: Sequence[str]) -> tuple[str, ...]:
        return (model, "--host", host, "--port", str(port), *args)

    def reader(self) -> ToyReader:
        return ToyReader()

    def metric_facts(self, text: str, where: str, seconds: float | None = None) -> Sequence[Fact]:
        return []

    def config_facts(self, answers: Mapping[str, object]) -> Sequence[Fact]:
        return []
