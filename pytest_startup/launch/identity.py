"""Who a process is: pid and start time, so that a number used again is never taken for ours; whose children it has."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

#: The variable in the environment of everything that we start; its value is the run's id.
MARKER = "PYTEST_STARTUP_RUN"


@dataclass(frozen=True, order=True)
class Identity:
    """A process for certain: ``start`` is field 22 of ``/proc/PID/stat`` (clock ticks since boot).

    Two processes with the same pid on one boot have different starts.
    """

    pid: int
    start: int


@dataclass(frozen=True)
class Process:
    """One row of the process table. ``state`` is the kernel's letter (``Z``: dead, not yet waited for)."""

    identity: Identity
    parent: int
    group: int
    session: int
    state: str
    name: str
    threads: int = 1

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def runs(self) -> bool:
        """False for a corpse. While a thread of it still ends, a process that shows ``Z`` may hold ports and memory."""
        return self.state not in "ZX" or self.threads > 1


def parse_stat(text: str) -> Process:
    """A ``/proc/PID/stat`` line; the name may hold spaces and brackets. Raises ValueError for another text."""
    left, bracket, right = text.rpartition(")")
    pid, opened, name = left.partition(" (")
    rest = right.split()
    if not bracket or not opened or len(rest) < 20:
        raise ValueError(f"not a /proc/PID/stat line: {text[:80]!r}")
    return Process(
        identity=Identity(int(pid), int(rest[19])),
        parent=int(rest[1]),
        group=int(rest[2]),
        session=int(rest[3]),
        state=rest[0],
        name=name,
        threads=int(rest[17]),
    )


def look(pid: int, proc: str | os.PathLike[str] = "/proc") -> Process | None:
    """The process that has this pid now; None if there is none."""
    try:
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return parse_stat(file.read())
    except (OSError, ValueError):
        return None


def age(identity: Identity) -> float:
    """For how many seconds this process has been there, or would have been."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - identity.start / os.sysconf("SC_CLK_TCK"))


def identify(pid: int) -> Identity | None:
    """The identity of a process that runs now; None: there is none."""
    process = look(pid)
    return process.identity if process else None


def alive(identity: Identity) -> bool:
    """Does this very process run? A corpse does not."""
    process = look(identity.pid)
    return process is not None and process.identity == identity and process.runs


def table(proc: str | os.PathLike[str] = "/proc") -> dict[int, Process]:
    """Every process that can be seen, by pid."""
    found = (look(int(name), proc) for name in os.listdir(proc) if name.isdecimal())
    return {p.pid: p for p in found if p is not None}


def descendants(roots: Collection[int], processes: Mapping[int, Process]) -> list[Process]:
    """Everything below ``roots`` (which are left out), parents before children."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    out: list[Process] = []
    queue = list(roots)
    seen = set(queue)
    while queue:
        for child in children.get(queue.pop(0), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                out.append(child)
                queue.append(child.pid)
    return out


def marked(run_id: str, processes: Iterable[Process]) -> list[Process]:
    """Those whose environment carries our marker of this run. Processes of other users can't be read, nor are ours."""
    wanted = f"{MARKER}={run_id}".encode()
    out = []
    for process in processes:
        try:
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    out.append(process)
        except OSError:
            continue
    return out


def ours(run_id: str, known: Iterable[Identity], processes: Mapping[int, Process] | None = None) -> list[Process]:
    """What still runs of a run whose keeper is gone: known identities, marked ones, their sessions and children.

    An engine may overwrite its environment when it sets its title, so the marker alone is not enough; a session is
    ours while a process of it that is ours for certain still lives. This process itself is never in the answer.
    """
    now = table() if processes is None else processes
    certain = {i.pid for i in known if i.pid in now and now[i.pid].identity == i}
    certain |= {p.pid for p in marked(run_id, now.values())}
    certain.discard(os.getpid())
    sessions = {now[pid].session for pid in certain} - {0, os.getsid(0)}
    certain |= {p.pid for p in now.values() if p.session in sessions}
    certain |= {p.pid for p in descendants(certain, now)}
    certain.discard(os.getpid())
    return [now[pid] for pid in sorted(certain) if now[pid].runs]


def opened(pid: int) -> Iterator[str]:
    """What a process has open (``socket:[7]``, paths), as far as we may look."""
    try:
        handles = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for handle in handles:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{handle}")
        except OSError:  # closed since it was listed, as always the one with which our own were listed
            continue


def command_line(pid: int, limit: int = 160) -> str:
    """What a process calls itself, on one printable line; its kernel name in brackets when it has no arguments."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(4096).replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return "?"
    text = " ".join("".join(c if c.isprintable() else " " for c in raw).split())
    if not text:
        process = look(pid)
        text = f"[{process.name}]" if process else "?"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def arguments(pid: int) -> list[str] | None:
    """The argument list as the kernel shows it; None if it can't be read, or is a title written over it."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            parts = file.read().removesuffix(b"\0").split(b"\0")
    except OSError:
        return None
    return [part.decode("utf-8", "replace") for part in parts] if any(parts[1:]) else None


def engine_arguments(main: Identity, port: int) -> tuple[int, list[str]] | None:
    """Pid and arguments of the process that was told to serve on ``port``: ``main``, or what a script in between ran.

    The lowest of those below ``main`` whose arguments name the port; None where no process shows it.
    """
    own = look(main.pid)
    below = descendants([main.pid], table())
    found = shown_arguments([*([own] if own else []), *below], (str(port), f"--port={port}"))
    return found if found is not None and alive(main) else None


def shown_arguments(processes: Iterable[Process], words: Collection[str]) -> tuple[int, list[str]] | None:
    """Pid and arguments of the lowest of these processes that has one of ``words`` among them: what scripts ran last.

    A process that was forked shows those of its parent: of all with these arguments it is the pid of the highest, then
    oldest. None where no process shows one.
    """
    found = {p.pid: p for p in processes}

    def depth(process: Process) -> int:
        above, count = found.get(process.parent), 0
        while above is not None and count < len(found):
            above, count = found.get(above.parent), count + 1
        return count

    wanted, lowest = set(words), sorted(found.values(), key=lambda p: (-depth(p), p.identity.start, p.pid))
    seen = [(p, shown) for p in lowest if (shown := arguments(p.pid)) is not None and wanted & set(shown)]
    if not seen:
        return None
    same = [p for p, shown in seen if shown == seen[0][1]]
    return min(same, key=lambda p: (depth(p), p.identity)).pid, seen[0][1]


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal exactly this process; False if it is gone. A pid that was used again is never hit.

    The pidfd is opened before the start time is compared, so the process compared is the process signalled. Where the
    kernel has no pidfd (before 5.3) the comparison comes directly before the signal.
    """
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):
        handle = -1
    try:
        if identify(identity.pid) != identity:
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(identity.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True
