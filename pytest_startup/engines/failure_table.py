"""All failure classes in the order in which they are tried, and the lines that prove that an engine died or stopped."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_startup.engines.failures import FailureTable
from pytest_startup.engines.failures_build import ARTIFACTS, BACKENDS, BUILDS
from pytest_startup.engines.failures_device import DEVICE
from pytest_startup.engines.failures_ends import CONSEQUENCES, ENDINGS
from pytest_startup.engines.failures_memory import MEMORY
from pytest_startup.engines.failures_model import ARGUMENTS, MODEL
from pytest_startup.engines.failures_ranks import PEERS, PORTS, TRANSFERS

CLASSES = (
    *CONSEQUENCES,
    *MEMORY,
    *DEVICE,
    *ARGUMENTS,
    *ARTIFACTS,
    *PORTS,
    *PEERS,
    *TRANSFERS,
    *MODEL,
    *BUILDS,
    *BACKENDS,
    *ENDINGS,
)
TABLE = FailureTable(CLASSES)


@dataclass(frozen=True)
class Sign:
    """A line that tells what became of the engine: ``died``, ``stopping`` (asked to) or ``ready`` (its own claim).

    ``process``: only where this process prints it.
    """

    effect: str
    anchor: str
    example: str
    counter: str
    pattern: str | None = None
    process: str | None = None
    versions: str = ""


SIGNS: tuple[Sign, ...] = (
    Sign("died", "EngineCore failed to start", "EngineCore failed to start.", "EngineCore started"),
    Sign(
        "died",
        "EngineCore encountered a fatal error",
        "EngineCore encountered a fatal error.",
        "EngineCore loop active.",
    ),
    Sign(
        "died",
        "EngineCore hit an exception",
        "EngineCore hit an exception: Traceback",
        "EngineCore hit the cache",
        versions="vLLM to 0.8.4",
    ),
    Sign("died", "WorkerProc failed to start", "WorkerProc failed to start.", "WorkerProc started"),
    Sign(
        "died",
        "Engine core initialization failed",
        "RuntimeError: Engine core initialization failed.",
        "Engine core initialization took 12 s",
    ),
    Sign(
        "died",
        "Got fatal signal from worker processes",
        "Got fatal signal from worker processes, shutting down.",
        "Got signal from worker processes",
    ),
    Sign("died", "AsyncLLM output_handler failed", "AsyncLLM output_handler failed.", "output_handler started"),
    Sign(
        "died",
        "ngine is already dead, terminating",
        "MQLLMEngine is already dead, terminating server process",
        "MQLLMEngine is alive",
    ),
    Sign(
        "died",
        "got fatal signal from worker",
        "MulitprocExecutor got fatal signal from worker processes",
        "MultiprocExecutor got a message from worker processes",
    ),
    Sign(
        "died",
        "Invocation of ",
        "Invocation of wake_up method failed",
        "Invocation of add_lora method failed",
        pattern=r"Invocation of (?:wake_up|sleep|reload_weights|initialize_\w+) method failed",
    ),
    Sign("died", "Engine loop has died", "Engine loop has died", "Engine loop started", versions="vLLM V0"),
    Sign(
        "died",
        "hit an exception: Traceback",
        "Scheduler hit an exception: Traceback (most recent call last):",
        "WorkerProc hit an exception.",
        versions="SGLang, all",
    ),
    Sign(
        "died",
        "Received sigquit from a child",
        "Received sigquit from a child process. It usually means",
        "Received a message from a child process",
    ),
    Sign(
        "died",
        "SIGQUIT received",
        "SIGQUIT received. signum=3, frame=None. It usually means",
        "custom_sigquit_handler=None",
    ),
    Sign(
        "died", "Initialization failed. warmup error", "Initialization failed. warmup error: Traceback", "warmup done"
    ),
    Sign("stopping", "shutdown triggered", "[shutdown] API server: shutdown triggered", "shutdown complete"),
    Sign("stopping", "trigger received signal=", "[shutdown] EngineCore: trigger received signal=SIGTERM", "signal=x"),
    Sign(
        "stopping",
        "Shutting down FastAPI",
        "Shutting down FastAPI HTTP server.",
        "Shutting down Ray",
        pattern="HTTP server",
    ),
    Sign(
        "stopping",
        "Shutting down",
        "Shutting down",
        "Shutting down Ray distributed executor.",
        pattern="^Shutting down$",
    ),
    Sign(
        "stopping",
        "send sigterm to process A",
        "[shutdown] Process manager: send sigterm to process ApiServer_0",
        "[shutdown] Process manager: no process left",
    ),
    Sign(
        "stopping",
        "Executor: waiting for worker exit",
        "[shutdown] Executor: waiting for worker exit count=1",
        "Executor: started",
        process="MainProcess",
        versions="vLLM 0.23 on, a node without API server",
    ),
    Sign(
        "stopping",
        "SIGTERM received",
        "SIGTERM received. signum=None frame=None. Draining requests",
        "SIGTERM",
        versions="SGLang",
    ),
    Sign(
        "stopping",
        "Gracefully exiting",
        "Gracefully exiting... Remaining number of requests 0.",
        "exit",
        versions="SGLang",
    ),
    Sign(
        "stopping",
        "eceived signal ",
        "Received signal 15, shutting down",
        "received signal strength",
        pattern=r"[Rr]eceived signal (?:\d+|SIG\w+)",
    ),
    Sign(
        "stopping",
        "eceived SIG",
        "Received SIGTERM, exiting",
        "perceived",
        pattern=r"\b[Rr]eceived SIG(?:TERM|INT|HUP)\b",
    ),
    Sign(
        "stopping",
        "Gracefully ",
        "Gracefully Stopping... press Ctrl+C again to force",
        "Gracefully handled",
        pattern=r"^Gracefully [Ss]topping\.\.\.",
        versions="Docker Compose",
    ),
    Sign(
        "stopping",
        " CANCELLED AT ",
        "slurmstepd: error: *** JOB 41 ON n7 CANCELLED AT 2026-05-06T07:08:09 DUE TO TIME LIMIT ***",
        "slurmstepd: error: task 0 exited",
        pattern=r"slurmstepd: error: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT ",
        versions="Slurm",
    ),
    Sign("ready", "Application startup complete", "Application startup complete.", "Waiting for application startup."),
    Sign(
        "ready",
        "fired up and ready to roll",
        "The server is fired up and ready to roll!",
        "ready",
        versions="SGLang, all",
    ),
)
_PATTERNS = {sign: re.compile(sign.pattern) for sign in SIGNS if sign.pattern}
SIGN_ANCHORS = tuple(dict.fromkeys(sign.anchor for sign in SIGNS))


def sign_of(message: str, process: str | None) -> Sign | None:
    """The first sign that the message is."""
    for sign in SIGNS:
        if sign.anchor in message and (sign.process is None or sign.process == process):
            pattern = _PATTERNS.get(sign)
            if pattern is None or pattern.search(message):
                return sign
    return None
