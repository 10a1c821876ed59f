"""cleanup: the engine lived until it was stopped, and nothing of ours is left: processes, port, memory, container."""

from __future__ import annotations

from pytest_startup.baseline import Baseline
from pytest_startup.checks import common
from pytest_startup.checks.base import Verdict
from pytest_startup.profile.model import Profile
from pytest_startup.record import OWN_END, Evidence, Leftover, StartRecord

_HELPS = {
    "pid": "end that process; the next start would share its device memory and ports",
    "port": "find who listens there before the next start",
    "shm": "remove the file if no engine uses it: such files add up until the host runs out of memory",
    "gpu-memory": "a process still holds the device, or the driver has not released it: look at it with nvidia-smi",
    "container": "remove it: pytest-startup clean",
}


def check(profile: Profile, _reference: StartRecord | None, start: StartRecord, _baseline: Baseline | None) -> Verdict:
    """Judges what the stop proved. A stop that was not made (engine kept up, start not ended) proves nothing."""
    judging = common.Judging("cleanup", "proof, after a stop, that pids, port and memory are back")
    for item in start.cleanup or ():
        seen = Evidence("process", item.kind, _text(item), node=item.node, seconds=item.seconds)
        judging.saw(seen)
        if item.kind == OWN_END:
            judging.failed(
                f"the engine did not live until it was stopped: {item.what}",
                "an engine that runs until it is stopped",
                [item.what],
                [seen],
                ("it served, and then ended by itself: the last lines of its log tell more",),
            )
        elif not item.released:
            judging.failed(
                f"left behind after the stop: {item.kind} {item.what}" + (f" on {item.node}" if item.node else ""),
                f"released within {profile.deadlines.release:g} s",
                [_text(item)],
                [seen],
                (_HELPS.get(item.kind, "remove it before the next start"),),
                "deadlines.release",
            )
        elif item.seconds is not None:
            name = f"{item.kind} released s"
            judging.numbers[name] = max(round(item.seconds, 2), float(judging.numbers.get(name, 0.0)))
    return judging.verdict()


def _text(item: Leftover) -> str:
    if item.kind == OWN_END:
        return item.what
    when = f" after {item.seconds:.1f} s" if item.seconds is not None else ""
    return f"{item.kind} {item.what}: {'released' if item.released else 'still there'}{when}"
