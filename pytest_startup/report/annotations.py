"""GitHub: workflow commands that mark the profile's line, and the step summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_startup.report import terminal
from pytest_startup.report.results import ProfileResult


def below_workspace(environ: Mapping[str, str], root: Path) -> str:
    """Where ``root`` lies in the checkout of a runner, with a slash behind it; GitHub's paths begin there."""
    workspace = environ.get("GITHUB_WORKSPACE", "")
    if not workspace or not root.is_relative_to(workspace) or root == Path(workspace):
        return ""
    return f"{root.relative_to(workspace).as_posix()}/"


def commands(results: Sequence[ProfileResult], below: str = "") -> list[str]:
    """One ``::error`` per red item (the first of a failed start only), one ``::warning`` per waiver. ``below``: what
    stands before a profile's path, relative to the checkout."""
    out = []
    for result in results:
        told = False
        for item in result.ordered():
            title = f"{result.name} {item.start}: {item.check}"
            if item.waived is not None:
                out.append(
                    command("warning", below + result.key, item.line, title, f"waived ({item.outcome}): {item.waived}")
                )
            elif not item.green and not (item.outcome == "error" and told):
                told = told or item.outcome == "error"
                out.append(command("error", below + result.key, item.line, title, item.text or item.summary))
    return out


def command(level: str, file: str, line: int | None, title: str, message: str) -> str:
    """``::error file=…,line=…,title=…::message`` with everything escaped that would end a property or a line."""
    place = f"file={value(file)}" + (f",line={line}" if line else "")
    return f"::{level} {place},title={value(title)}::{data(message)}"


def data(text: str) -> str:
    """A message as GitHub's workflow commands want it escaped."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def value(text: str) -> str:
    """A property (``file=``, ``title=``), in which more has to be escaped."""
    return data(text).replace(":", "%3A").replace(",", "%2C")


def step_summary(results: Sequence[ProfileResult]) -> str:
    """Markdown: per profile the verdict, the table, and what every red check says. Quoted text stays text."""
    lines: list[str] = []
    for result in results:
        lines += [f"### {inline(result.name)}: {result.status}", "", inline(terminal.verdict_line(result)), ""]
        if result.rows:
            lines += fenced([terminal.identity_line(result.identity), *terminal.table(list(result.rows.values()))])
        for item in result.red:
            if item.outcome != "error":
                lines += [f"**{inline(item.start)}: {inline(item.check)}**", "", *fenced(item.text.splitlines())]
    return "\n".join(lines) + "\n"


def fenced(lines: Sequence[str]) -> list[str]:
    """A code block whose fence is longer than any run of back-ticks inside."""
    ticks = "`" * 3
    while any(ticks in line for line in lines):
        ticks += "`"
    return [ticks, *lines, ticks, ""]


def inline(text: str) -> str:
    """``text`` with the characters that mean something to Markdown or HTML escaped."""
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return "".join("\\" + c if c in "\\`*_[]|#!~" else c for c in text)
