"""The environment that an engine gets: a few of the caller's variables, the profile's own, and our marker."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from pytest_startup.launch.identity import MARKER

#: Variables of the caller (shell patterns) that every engine gets: where programs, libraries, homes and certificates
#: are, language and time zone. Nothing that changes what an engine computes or caches is among them, and no proxies:
#: an engine that talks to its own ranks over HTTP breaks behind one.
PASSED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
)

_PROXIES = frozenset({"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"})


def engine_environment(
    caller: Mapping[str, str],
    profile_env: Mapping[str, str],
    run_id: str,
    pass_env: Sequence[str] = (),
    gpus: Sequence[str] = (),
) -> dict[str, str]:
    """The whole environment of an engine; later sources win: caller's, ``gpus``, the profile's, our marker.

    ``pass_env`` names further variables of the caller (shell patterns); one that is not set is left out, and a proxy is
    only passed when it is named in full. ``gpus`` become ``CUDA_VISIBLE_DEVICES`` (numbered as NVML does), unless the
    profile says otherwise. Output is unbuffered, so that a line's receive time is the time at which it was printed.
    """
    allowed = (*PASSED, *pass_env)
    out = {
        k: v
        for k, v in caller.items()
        if k in pass_env or (k.lower() not in _PROXIES and any(fnmatch.fnmatchcase(k, p) for p in allowed))
    }
    out.setdefault("PYTHONUNBUFFERED", "1")
    if gpus:
        out["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        out["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    out.update(profile_env)
    out[MARKER] = run_id
    return out
