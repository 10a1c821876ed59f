"""Secrets out of everything that is written: in text, in JSON, and in a log that arrives in chunks.

What is taken out: the values given (those of ``${VAR}``), also JSON- and URL-escaped, in
base64 and hexadecimal, and line by line; tokens by their
form (``hf_…``, ``sk-…``, JSON web tokens …); ``Authorization`` headers; and the values of names that say secret,
password, token or key (``HF_TOKEN=…``, ``--api-key …``, ``"client_secret": "…"``). Names of the trade stay readable:
``max_tokens``, ``eos_token``, ``tokenizer``, ``cache_key``. Pure: nothing is read, nothing is kept.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "[redacted]"
#: A given value shorter than this stays in running text: it would take ``1`` or ``yes`` out of every line.
SHORTEST = 4
#: Characters of the shortest token, with what tells its kind: ``hf_`` and 16 more.
_WHOLE_TOKEN = 19
#: A line longer than this is passed on in pieces; no token by form is longer than what is held back.
_LONGEST_LINE = 1 << 16
_HELD = 1 << 12
#: No name, with what stands between it and its value, is longer.
_NAME_LENGTH = 128
#: What looks like one secret over more than this is not held any longer, but left out.
_LONGEST_SECRET = 1 << 20

_LEFT = r"(?<![A-Za-z0-9])"
_TOKENS = re.compile(
    _LEFT + r"(?:hf_(?:(?=[A-Za-z]*[A-Z0-9])[A-Za-z0-9]{8,}|[a-z]{16,})"
    r"|(?:sk|rk|pk|nvapi|glpat|xox[abprs])-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{8,}|(?:sk|nvapi)-[A-Za-z_-]{16,}"
    r"|(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{16,}|AKIA[A-Z0-9]{16}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*)"
)
_VALUE = r"""(?:"(?P<dq>(?:[^"\\\n]|\\.)*)"?|'(?P<sq>(?:[^'\\\n]|\\.)*)'?|(?P<bare>[^\s,;"'\])}&]+))"""
_AUTHORIZATION = re.compile(
    r"""(?i)authorization["']?\s*[:=,]\s*["']?(?:(?:bearer|basic|token|digest)\s+)?(?P<bare>[^\s,;"'\])}]+)"""
)
_BEARER = re.compile(r"(?i)" + _LEFT + r"bearer\s+(?P<bare>(?=[A-Za-z._~+/=-]*[0-9])[A-Za-z0-9._~+/=-]{8,})")
#: From a telling word to the value of its name. The first character is a plain class, so that the search can skip.
_NAMED = re.compile(
    r"[sStTkKpPcC](?i:(?:(?<=s)ecret|(?<=t)oken|(?<=k)ey|(?<=p)assw|(?<=p)assphrase|(?<=c)redential)[a-z0-9_-]{0,24})"
    r"""(?P<between>["']?\s{0,4}[:=]\s{0,4}[\[({]?|["'],\s{0,4}|\s{1,4})""" + _VALUE
)
_NAME_BEFORE = re.compile(r"[A-Za-z0-9_.-]{0,64}\Z")
_URL_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]{1,15}://[^\s/:@]{1,64}:(?P<bare>[^\s/@]{1,256})@")
#: Without one of its words (in lower case) in a text, a pattern has nothing to find there. Plain search is far faster.
_BY_FORM = (
    (_TOKENS, ("hf_", "sk-", "rk-", "pk-", "nvapi-", "glpat", "xox", "github_pat", "akia", "eyj")),
    (_TOKENS, ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")),
    (_AUTHORIZATION, ("authorization",)),
    (_BEARER, ("bearer",)),
    (_URL_PASSWORD, ("://",)),
)
_NAME_WORDS = ("secret", "token", "key", "passw", "passphrase", "credential")
_ALWAYS = frozenset({"secret", "secrets", "password", "passwords", "passwd", "passphrase", "credential", "credentials"})
_PLAIN_TOKENS = frozenset(
    {"eos", "bos", "pad", "unk", "sep", "cls", "mask", "image", "video", "audio", "vision", "next", "stop", "per"}
    | {"first", "last", "output", "input", "prompt", "special", "start", "end", "decoder", "draft", "think", "max"}
    | {"min", "num", "placeholder", "bonus", "sampled", "generated", "real", "completion", "tool", "control"}
)
_PLAIN_KEYS = frozenset(
    {"cache", "hash", "sort", "dict", "state", "layer", "config", "metric", "group", "record", "match"}
)
_UNSET = re.compile(r"(?i)none|null|true|false|unset|''|\"\"|\*+|\[redacted\]?|[-+]?[0-9.,_]{1,12}")


def names_secret(name: str) -> bool:
    """Does a name (of a key, an option, a variable) say that its value is a secret?"""
    parts = [p for p in re.split(r"[_.\-\s]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()) if p]
    if not parts:
        return False
    if any(p in _ALWAYS or p in ("apikey", "apitoken") for p in parts):
        return parts[-1] not in ("file", "path", "dir")
    last, before = parts[-1], parts[-2] if len(parts) > 1 else ""
    if last == "token":
        return before not in _PLAIN_TOKENS
    if last in ("key", "keys"):
        by_form = name.isupper() and last == "key"
        return before in ("api", "access", "private", "signing", "encryption", "ssh", "account", "auth", "master") or (
            by_form and bool(before) and before not in _PLAIN_KEYS
        )
    return False


def may_name_secret(name: str) -> bool:
    """Could it? Wider than ``names_secret``, for names that nobody has looked at and values that need not be read."""
    lower = name.lower()
    return any(word in lower for word in (*_NAME_WORDS, "auth"))


def holds_token(text: str) -> bool:
    """Does a token stand in ``text``, by its form? Only one as long as they are: a word that is masked in vain costs
    nothing, what a user wrote and is refused does."""
    return any(len(found[0]) >= _WHOLE_TOKEN for found in _TOKENS.finditer(text))


class Redactor:
    """Takes ``secrets``, and whatever looks like one, out of what is about to be written."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.secrets = frozenset(secrets)
        forms = {form for secret in self.secrets for form in _forms(secret)}
        self.longest = max((len(f.encode()) for f in forms), default=0)
        self._known = _alternatives(forms)
        # a stream is bytes that need not be UTF-8: there, each character stands for one byte
        self._known_bytes = _alternatives({f.encode().decode("latin-1") for f in forms})

    def text(self, text: str) -> str:
        """``text`` with every secret replaced by ``[redacted]``."""
        return _masked(text, self._spans(text, self._known))

    def argv(self, argv: Iterable[str]) -> list[str]:
        """An argument list: also what stands behind an option that says secret (``--api-key``, ``A``, ``B``)."""
        out: list[str] = []
        hidden = False
        for arg in argv:
            option, equals, _ = arg.partition("=")
            if hidden and not arg.startswith("--"):
                out.append(MASK)
                continue
            secret = names_secret(option.lstrip("-"))
            out.append(f"{option}={MASK}" if equals and secret else self.text(arg))
            hidden = secret and not equals and arg.startswith("--")
        return out

    def json(self, value: Any) -> Any:
        """Plain data (mappings, lists, scalars), copied, with secrets replaced; keys are kept unless they hold one."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(str(k)): self._hide(v) if names_secret(str(k)) else self.json(v) for k, v in value.items()
            }
        if isinstance(value, (list, tuple)):
            if value and all(isinstance(v, str) for v in value):
                return self.argv(value)
            return [self.json(v) for v in value]
        return value

    def _hide(self, value: Any) -> Any:
        """The value of a name that says secret: texts are masked; numbers, switches and nothing are no secrets."""
        if isinstance(value, str):
            return value if not value or _UNSET.fullmatch(value) else MASK
        if isinstance(value, Mapping):
            return {k: self._hide(v) for k, v in value.items()}
        return [self._hide(v) for v in value] if isinstance(value, (list, tuple)) else value

    def stream(self) -> RedactedStream:
        """For the copy of a log: bytes in, bytes out, a secret may be split over any chunks."""
        return RedactedStream(self)

    def _spans(self, text: str, known: re.Pattern[str] | None) -> list[tuple[int, int]]:
        """Where secrets stand, sorted, not overlapping."""
        found = [m.span() for m in known.finditer(text)] if known else []
        lower = text.lower()
        for pattern, words in _BY_FORM:
            if any(word in lower for word in words):
                found += [m.span("bare" if "bare" in pattern.groupindex else 0) for m in pattern.finditer(text)]
        if any(word in lower for word in _NAME_WORDS):
            found += _named_spans(text)
        merged: list[tuple[int, int]] = []
        for start, end in sorted(s for s in found if s[0] < s[1]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged


class RedactedStream:
    """Whole lines are passed on as soon as they are complete; of a very long one, all but its last 4 KiB."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._pending = ""

    def feed(self, data: bytes) -> bytes:
        """More bytes; returns what can be written now."""
        self._pending += data.decode("latin-1")
        cut = self._pending.rfind("\n") + 1
        if not cut and len(self._pending) > _LONGEST_LINE:
            cut = len(self._pending) - max(_HELD, self._redactor.longest)
            for start, end in reversed(self._redactor._spans(self._pending, self._redactor._known_bytes)):
                if start - _NAME_LENGTH < cut < end:  # the name before a value must stay with it
                    cut = max(0, start - _NAME_LENGTH)
            if not cut and len(self._pending) > _LONGEST_SECRET:
                self._pending = ""
                return MASK.encode()
        ready, self._pending = self._pending[:cut], self._pending[cut:]
        return self._clean(ready)

    def close(self) -> bytes:
        """End of input: the rest."""
        rest, self._pending = self._pending, ""
        return self._clean(rest)

    def _clean(self, text: str) -> bytes:
        spans = self._redactor._spans(text, self._redactor._known_bytes) if text else []
        return _masked(text, spans).encode("latin-1")


_URLSAFE = str.maketrans("+/", "-_")


def _forms(secret: str) -> Iterable[str]:
    """How a value may be spelled in what an engine prints: as it is, escaped, and each line of several."""
    for part in {secret, *(line.strip() for line in secret.splitlines() if len(line.strip()) >= 2 * SHORTEST)}:
        for form in (
            part,
            json.dumps(part)[1:-1],
            repr(part)[1:-1],
            urllib.parse.quote(part, safe="", errors="replace"),
        ):
            if len(form) >= SHORTEST:
                yield form
        yield from _encoded(part.encode("utf-8", "surrogatepass"))


def _encoded(value: bytes) -> Iterable[str]:
    """A value in hexadecimal and base64 letters, whatever stands before and behind it (``user:…`` of a basic auth).

    Of base64 only the letters that its neighbours can't change; of a value shorter than 8 bytes too few are left.
    """
    if len(value) < 2 * SHORTEST:
        return
    yield from (value.hex(), value.hex().upper())
    for before in range(3):
        whole = base64.b64encode(bytes(before) + value).decode().rstrip("=")
        end = (before + len(value)) * 8 // 6
        core = whole[(before * 8 + 5) // 6 : end]
        yield from (core, core.translate(_URLSAFE))


def _alternatives(forms: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted(forms, key=len, reverse=True)
    return re.compile("|".join(re.escape(f) for f in longest_first)) if longest_first else None


def _named_spans(text: str) -> list[tuple[int, int]]:
    out = []
    for found in _NAMED.finditer(text):
        before = _NAME_BEFORE.search(text, max(0, found.start() - 64), found.start())
        name = text[before.start() if before else found.start() : found.start("between")]
        option = name.startswith("-")
        if not names_secret(name.lstrip("-")) or (not option and not re.search("[:=]", found["between"])):
            continue
        group = next(g for g in ("dq", "sq", "bare") if found[g] is not None)
        value = found[group]
        if _UNSET.fullmatch(value) or (option and value.startswith("--")):
            continue
        if name.lower() in ("token", "key") and not option and (len(value) < 8 or value.startswith("<")):
            continue  # "stop token: <|end|>" in running text
        out.append(found.span(group))
    return out


def _masked(text: str, spans: list[tuple[int, int]]) -> str:
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], MASK]
        at = end
    return "".join([*parts, text[at:]]) if spans else text
