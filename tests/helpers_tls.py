"""Certificates made on the spot by openssl: an authority, a server on loopback, a client."""

from __future__ import annotations

import subprocess
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


def make(folder: Path) -> Path:
    """``ca.pem``, ``server-cert.pem`` and ``server-key.pem``, ``cert.pem`` and ``key.pem`` (the client's), as Docker
    names them. The server's is for 127.0.0.1 and localhost."""
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(folder, "req", "-x509", *_KEY, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=tests")
    for name, usage in (("server-", "serverAuth"), ("", "clientAuth")):
        _openssl(
            folder, "req", "-x509", *_KEY, "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-addext", f"extendedKeyUsage={usage}",
            "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", f"{name}key.pem", "-out", f"{name}cert.pem",
        )  # fmt: skip
    return folder


def _openssl(folder: Path, *words: str) -> None:
    done = subprocess.run(["openssl", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
