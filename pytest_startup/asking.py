"""How the engine of a profile is asked: the name that it serves, the key that it wants, requests to it."""

from __future__ import annotations

import threading
from itertools import zip_longest
from typing import TYPE_CHECKING

from pytest_startup.launch.base import ServesElsewhere
from pytest_startup.observe.http import Http
from pytest_startup.workload.completions import Target

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_startup.engines.base import Dialect
    from pytest_startup.launch.base import Running
    from pytest_startup.profile.model import Profile


def served_name(profile: Profile) -> str:
    """The name under which the engine serves its model."""
    return profile.engine.served_name or profile.engine.model


def api_key(profile: Profile) -> str | None:
    """The key that the engine asks for by its own arguments or environment (vLLM and SGLang: ``--api-key``)."""
    args = profile.engine.args
    for arg, behind in zip_longest(args, args[1:]):
        if arg == "--api-key" and behind:
            return behind
        if arg.startswith("--api-key="):
            return arg.partition("=")[2]
    return profile.engine.env.get("VLLM_API_KEY") or None


def allowed_hosts(running: Running) -> Collection[str]:
    """Where requests to a running engine may go besides this host's loopback."""
    return running.hosts if isinstance(running, ServesElsewhere) else ()


def target_of(profile: Profile, dialect: Dialect, running: Running) -> Target:
    """Requests to a running engine; the caller closes ``target.http``."""
    http = Http(running.base_url, allowed=allowed_hosts(running), api_key=api_key(profile))
    if profile.nodes:
        threading.Thread(target=_end_with, args=(running, http), name="startup-requests", daemon=True).start()
    return Target(http, dialect.endpoints, served_name(profile), running.launched_at, profile.deadlines.request)


def _end_with(running: Running, http: Http) -> None:
    """An engine over several nodes holds requests for minutes after one of them was lost: they end with it."""
    while not http.cancelled:
        if running.wait_exit(0.5) is not None:
            http.cancel()
