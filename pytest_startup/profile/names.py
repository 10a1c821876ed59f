"""The closed lists of names that a profile may use: checks, engines, restart kinds, phases with a deadline."""

from __future__ import annotations

from pytest_startup.record import PHASES

#: The checks in the order in which they are shown.
CHECKS = (
    "identity",
    "ready",
    "phases",
    "backend",
    "autotune",
    "artifacts",
    "graphs",
    "kv",
    "memory",
    "throughput",
    "quality",
    "tiers",
    "log",
    "cleanup",
)

#: Dialects that come with the plugin.
ENGINES = ("vllm", "sglang")

#: Restart kinds by launcher; a launcher added by a hook may do any of them.
RESTART_KINDS = {"process": ("process",), "container": ("same-container", "fresh-container")}
#: With nodes every container is a fresh one.
NODES_KINDS = {"process": ("process",), "container": ("fresh-container",)}

#: Key below ``deadlines`` → phase of the record.
PHASE_KEYS = {phase.replace("-", "_"): phase for phase in PHASES if phase not in ("serving", "shutdown")}
