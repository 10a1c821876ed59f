"""Why a daemon that listens on TCP can't be asked, in words that say what to do: nobody there, or what of TLS is wrong.

What docker-py says of these is the text of five wrapped exceptions.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from pytest_startup.launch.container.address import Address

_LIMIT = 3.0
#: What a server with TLS answers to a request without it (Go's HTTP server: every Docker).
_WANTS_TLS = "HTTP request to an HTTPS server"


def why_lost(address: Address) -> str | None:
    """What follows "the container engine at …", found out by a connection of our own; None: nothing is wrong with it,
    or it is a Unix socket."""
    if address.socket is not None:
        return None
    try:
        where = urlsplit(address.url)
        with socket.create_connection((where.hostname or "", where.port or 2375), _LIMIT) as plain:
            return None if address.tls is None else _shake_hands(plain, address.tls, where.hostname)
    except ConnectionRefusedError:
        return "does not run: Connection refused"
    except ssl.SSLError as error:
        return _tls(error, address.tls)
    except (OSError, ValueError) as error:
        return f"can't be reached: {error}"


def refused(text: str) -> str:
    """What a daemon answered that would not even say who it is, with what helps."""
    if _WANTS_TLS in text:
        return (
            "expects TLS: set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH (a folder of ca.pem, cert.pem and key.pem), or "
            "name a context that has them"
        )
    return f"refused: {text}"


def _shake_hands(plain: socket.socket, folder: Path, host: str | None) -> str | None:
    """As docker-py does it. A server that does not accept our certificate says so, or hangs up, when it is asked."""
    authority = folder / "ca.pem"
    context = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
    if (folder / "cert.pem").exists():
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    with context.wrap_socket(plain, server_hostname=host) as secured:
        try:
            secured.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            if secured.recv(1):
                return None
            said = "it hung up"
        except (ssl.SSLError, ConnectionError) as error:
            said = _reason(error)
    return f"does not accept us ({said}); expected cert.pem and key.pem of a client that it knows in {folder}"


def _tls(error: ssl.SSLError, folder: Path | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"shows a certificate that is not accepted ({error.verify_message}); expected one of {folder}/ca.pem"
    if "wrong version number" in _reason(error):
        return "does not speak TLS; leave DOCKER_TLS_VERIFY out, or give the port on which it does"
    return f"can't be reached by TLS ({_reason(error)}); expected ca.pem, cert.pem and key.pem in {folder}"


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error).lower().replace("_", " ")
