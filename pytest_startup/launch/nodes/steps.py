"""On a node: what is done around an engine in a container: steps before it, its removal after it."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_startup.launch.base import LaunchError

#: Between two tries of a step whose output is waited for.
_PAUSE = 0.5
#: A daemon that does not answer for this long is taken not to.
_LIMIT = 30.0


class StepFailed(LaunchError):
    """A step of the profile failed, or its condition did not come: no engine was started yet."""


def run_steps(steps: Sequence[Mapping[str, Any]], env: Mapping[str, str], cwd: str) -> None:
    """All steps in order. ``shown``: it is one of the profile's own; the others start what idles.

    Raises StepFailed or LaunchError with what the one that failed has said.
    """
    for step in steps:
        _run_step(step, env, cwd)


def _run_step(step: Mapping[str, Any], env: Mapping[str, str], cwd: str) -> None:
    argv, until, end = step["argv"], step["until"], time.monotonic() + step["within"]
    shown = str(step.get("shown") or " ".join(argv))[:120]
    failed, what = (StepFailed, "step") if step.get("shown") else (LaunchError, "the start of the idle container")
    while True:
        code, said = run(argv, env, cwd, max(1.0, end - time.monotonic()))
        if until is None and code == 0:
            return
        if until is not None and re.search(until, said):
            return
        if until is None:
            raise failed(f"{what} failed with exit code {code}: {last_words(said)} ({shown})")
        if time.monotonic() >= end:
            raise failed(f"{what}: no {until!r} within {step['within']:g} s: {last_words(said)} ({shown})")
        time.sleep(_PAUSE)


def last_words(said: str) -> str:
    """The last line of an output; what it was about stands there, below any traceback. Of a table (``ray status``) its
    last lines."""
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    if not lines:
        return "it has said nothing"
    return lines[-1][-300:] if "Traceback (most recent call last):" in lines else " ".join(lines)[-300:]


def run(
    argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str = "/", limit: float = _LIMIT
) -> tuple[int, str]:
    """Exit code and all that was said; -1 when it took longer than ``limit`` seconds."""
    try:
        done = subprocess.run(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as late:
        return -1, f"{(late.stdout or b'').decode('utf-8', 'replace')} (not done after {limit:.0f} s)"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def containers(docker: Sequence[str], label: str) -> tuple[list[str], str | None]:
    """Ids of our containers with this label; and why the daemon can't be asked, if it can't."""
    code, said = run([*docker, "ps", "-a", "-q", "--no-trunc", "--filter", f"label={label}"])
    return (said.split(), None) if code == 0 else ([], " ".join(said.split())[-200:])


def answers(docker: Sequence[str]) -> str | None:
    """What keeps the daemon from answering within two seconds; None: it answers."""
    code, said = run([*docker, "version", "--format", "{{.Server.Version}}"], limit=2.0)
    return None if code == 0 else " ".join(said.split())[-300:]


def remove(docker: Sequence[str], label: str) -> list[list[Any]]:
    """Remove our containers: ``[id, is it gone, why not]`` of each; one row without id where nobody answers."""
    found, why = containers(docker, label)
    if why is not None:
        return [["", False, why]]
    if found:
        run([*docker, "rm", "-f", "-v", *found], limit=2 * _LIMIT)
    left, why = containers(docker, label)
    return [[one[:12], one not in left and why is None, why or ""] for one in found]


def inspect(docker: Sequence[str], image: str, name: str) -> dict[str, Any]:
    """For the preflight: ``error`` of the daemon, ``image`` id, and what already has the ``name``."""
    code, said = run([*docker, "version", "--format", "{{.Server.Version}}"])
    if code != 0:
        return {"error": " ".join(said.split())[-300:], "image": None, "taken": None}
    code, said = run([*docker, "image", "inspect", "-f", "{{.Id}}", image])
    found = said.strip() if code == 0 else None
    code, said = run(
        [
            *docker,
            "ps",
            "-a",
            "--no-trunc",
            "--filter",
            f"name=^/?{re.escape(name)}$",
            "--format",
            "{{.Image}}, {{.Status}}",
        ],
    )
    return {"error": None, "image": found, "taken": said.strip() or None if code == 0 else None}
