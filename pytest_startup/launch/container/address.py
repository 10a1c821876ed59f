"""Where the container engine is: profile, ``DOCKER_HOST``, contexts, the usual socket; rootless and Podman named."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pytest_startup.launch.base import LaunchError
from pytest_startup.profile.model import ContainerLaunch

DEFAULT = "unix:///var/run/docker.sock"
_UNNAMED = "default"


class AddressError(LaunchError):
    """There is no usable address. The message says where it came from and what would be legal."""


@dataclass(frozen=True)
class Address:
    """``url`` as the Docker client takes it (``unix:///…``, ``tcp://127.0.0.1:2376``); ``tls``: folder of ca.pem,
    cert.pem and key.pem. ``source`` is what named it, for messages."""

    url: str
    source: str
    tls: Path | None = None

    @property
    def socket(self) -> str | None:
        """Path of a Unix socket."""
        return self.url.partition("://")[2] if self.url.startswith("unix://") else None

    @property
    def named(self) -> bool:
        """Did anything name it, or is it merely the usual place?"""
        return self.source != _UNNAMED

    def __str__(self) -> str:
        return f"{self.url} ({self.source})"

    def command(self) -> str:
        """``docker`` as a user would call it for this engine."""
        return "docker" if self.url == DEFAULT else f"docker -H {self.url}"


def find(container: ContainerLaunch | None, environ: Mapping[str, str]) -> Address:
    """As the docker command does it, the profile first (None: there is none yet). Raises AddressError."""
    if container is not None and container.docker_host is not None:
        return _checked(container.docker_host, "launch.container.docker_host", environ)
    if container is not None and container.context is not None:
        return _context(container.context, "launch.container.context", environ)
    if environ.get("DOCKER_HOST"):
        return _checked(environ["DOCKER_HOST"], "DOCKER_HOST", environ)
    if environ.get("DOCKER_CONTEXT"):
        return _context(environ["DOCKER_CONTEXT"], "DOCKER_CONTEXT", environ)
    current = _current(environ)
    if current is not None:
        return _context(current, f"current context of {_folder(environ) / 'config.json'}", environ)
    return Address(DEFAULT, _UNNAMED)


def others(environ: Mapping[str, str], uid: int) -> list[str]:
    """Sockets of engines that are there though nothing names them: rootless Docker, Podman."""
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    usual = (
        "/var/run/docker.sock",
        f"{runtime}/docker.sock",
        f"{runtime}/podman/podman.sock",
        "/run/podman/podman.sock",
    )
    return [f"unix://{path}" for path in usual if os.path.exists(path)]


def _checked(url: str, source: str, environ: Mapping[str, str], tls: Path | None = None) -> Address:
    text = f"unix://{url}" if url.startswith("/") else url
    scheme, separator, rest = text.partition("://")
    if not separator or not rest:
        raise AddressError(f"{source}: {url!r} is no address; expected unix:///path/to.sock or tcp://127.0.0.1:2376")
    if scheme == "unix":
        return Address(text, source)
    if scheme == "ssh":
        raise AddressError(
            f"{source}: {url} is not supported, because calls through it can hang without end; forward the socket with "
            f"the system's ssh instead (ssh -NL /tmp/docker.sock:/var/run/docker.sock …), or run pytest on that host"
        )
    if scheme not in ("tcp", "http", "https"):
        raise AddressError(f"{source}: {scheme}:// is not supported; expected unix:// or tcp://")
    host = urlsplit(text).hostname or ""
    if not _loopback(host):
        raise AddressError(
            f"{source}: the engine at {url} is on another host, where neither ports nor bind mounts are those of this "
            "one; expected an engine of this host: unix:///path/to.sock or tcp://127.0.0.1:2376"
        )
    if tls is None and (scheme == "https" or environ.get("DOCKER_TLS_VERIFY")):
        tls = Path(environ.get("DOCKER_CERT_PATH") or _folder(environ))
        if not any((tls / name).is_file() for name in ("ca.pem", "cert.pem")):
            where = "DOCKER_CERT_PATH" if environ.get("DOCKER_CERT_PATH") else "DOCKER_TLS_VERIFY"
            raise AddressError(f"{where}: no certificates in {tls}; expected a folder of ca.pem, cert.pem and key.pem")
    return Address(text, source, tls)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or "/root") / ".docker")


def _current(environ: Mapping[str, str]) -> str | None:
    path = _folder(environ) / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise AddressError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None
    name = data.get("currentContext") if isinstance(data, dict) else None
    return str(name) if name and name != "default" else None


def _context(name: str, source: str, environ: Mapping[str, str]) -> Address:
    if name == "default":
        return Address(DEFAULT, source)
    folder = _folder(environ) / "contexts"
    mark = hashlib.sha256(name.encode()).hexdigest()
    path = folder / "meta" / mark / "meta.json"
    try:
        endpoint = json.loads(path.read_text(encoding="utf-8"))["Endpoints"]["docker"]
        host = str(endpoint["Host"])
    except FileNotFoundError:
        known = ", ".join(sorted(_names(folder))) or "none but default"
        raise AddressError(f"{source}: no Docker context {name!r} (known: {known})") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AddressError(f"{source}: the Docker context {name!r} can't be read from {path}: {error!r}") from None
    if endpoint.get("SkipTLSVerify"):
        raise AddressError(
            f"{source}: the Docker context {name!r} skips the check of the daemon's certificate, which is always done "
            f"here; give it the authority: docker context update {name} --docker host={host},ca=…,cert=…,key=…"
        )
    tls = folder / "tls" / mark / "docker"
    return _checked(host, f"context {name}, {source}", environ, tls if tls.is_dir() else None)


def _names(folder: Path) -> list[str]:
    out = []
    for path in folder.glob("meta/*/meta.json"):
        try:
            out.append(str(json.loads(path.read_text(encoding="utf-8"))["Name"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return out
