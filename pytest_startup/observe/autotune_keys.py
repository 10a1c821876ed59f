"""The text of a FlashInfer record key, read with a small tokenizer: op, runner, profile, extras, ranks.

A key is Python's ``str`` of a tuple, with bare words in it (``torch.bfloat16``, ``<Activation.Swiglu: 3>``), so it is
neither JSON nor a literal. Nothing is evaluated.

| FlashInfer | parts of the key | rank in the key of the CUTLASS MoE ops |
|---|---|---|
| 0.6.7 to 0.6.12 | op, runner, profile | no |
| 0.6.13 to 0.6.17 | and extras, empty for MoE | no |
| 0.6.18 to 0.7.1 | and extras, 20 items for MoE | tp_rank and ep_rank |
| 0.7.2 and later (read to 0.7.4) | and extras, 17 items for MoE | no: sizes only |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Union

Value = Union[None, bool, int, float, str, "Word", tuple["Value", ...], list["Value"]]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<open>[(\[]) | (?P<close>[)\]]) | (?P<comma>,)
    | (?P<string>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
    | (?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]))
    | (?P<word><[^<>]*> | -?[A-Za-z_][\w.:]*(?:\([^()]*\))?)
    )""",
    re.VERBOSE,
)
_SIMPLE_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
MAX_DEPTH = 24
MAX_LENGTH = 65_536

#: Ops of the CUTLASS fused MoE; the TRT-LLM-gen runner has the same class name, so the op decides.
CUTLASS_MOE_OPS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
_MOE_WITH_RANKS = 20
_MOE_SIZES_ONLY = 17


class Word(str):
    """A bare word of a key, kept as it is printed: ``torch.bfloat16``."""

    __slots__ = ()


class KeySyntax(ValueError):
    """The text is no record key; the message says where."""


@dataclass(frozen=True)
class KeyRanks:
    """Parallel sizes and, where the version puts them in, ranks of a CUTLASS MoE key. None: not in this key."""

    tp_size: int | None = None
    tp_rank: int | None = None
    ep_size: int | None = None
    ep_rank: int | None = None

    def __bool__(self) -> bool:
        return self.tp_rank is not None or self.ep_rank is not None


@dataclass(frozen=True)
class Key:
    """A parsed key. ``extras`` None: the key has three parts (FlashInfer to 0.6.12).

    ``bucket`` is the first dimension of the profile's first shape: the token bucket of all MoE and GEMM ops.
    ``canonical``: the text is byte for byte what Python prints for the parsed tuple.
    """

    text: str
    op: str
    runner: str
    profile: tuple[Value, ...]
    extras: tuple[Value, ...] | None
    canonical: bool = True

    @property
    def parts(self) -> int:
        """How many parts the text has: 3 to FlashInfer 0.6.12, then 4."""
        return 3 if self.extras is None else 4

    @property
    def bucket(self) -> int | None:
        """None where the profile does not begin with a shape."""
        first = self.profile[0] if self.profile else None
        if isinstance(first, tuple) and first and isinstance(first[0], int):
            return first[0]
        return None

    @property
    def ranks(self) -> KeyRanks:
        return _ranks(self.op, self.extras)

    def without_ranks(self) -> tuple[str, str, str, str]:
        """What must be equal on all ranks of a homogeneous engine: op, runner, profile, extras with ranks blanked."""
        extras = self.extras
        if extras is not None and self.ranks and len(extras) == _MOE_WITH_RANKS:
            extras = tuple(Word("*") if i in (5, 7, 9) else v for i, v in enumerate(extras))
        return self.op, self.runner, render(self.profile), "" if extras is None else render(extras)

    def name(self) -> str:
        """``trtllm::fused_moe::gemm1 bucket 128``, as printed in findings."""
        return self.op if self.bucket is None else f"{self.op} bucket {self.bucket}"


def parse_key(text: str) -> Key:
    """Parse a key of either format. Raises KeySyntax."""
    value = parse_value(text)
    if not isinstance(value, tuple) or len(value) not in (3, 4):
        raise KeySyntax(f"not a tuple of 3 or 4 parts: {text[:80]!r}")
    op, runner, profile = value[:3]
    extras = value[3] if len(value) == 4 else None
    if type(op) is not str or type(runner) is not str:
        raise KeySyntax(f"op and runner are not text: {text[:80]!r}")
    if not isinstance(profile, tuple) or not (extras is None or isinstance(extras, tuple)):
        raise KeySyntax(f"profile or extras is not a tuple: {text[:80]!r}")
    return Key(text, op, runner, profile, extras, canonical=render(value) == text)


def parse_value(text: str) -> Value:
    """Parse one printed Python value made of tuples, lists, text, numbers and bare words. Raises KeySyntax."""
    if len(text) > MAX_LENGTH:
        raise KeySyntax(f"longer than {MAX_LENGTH} characters")
    stack: list[tuple[str, list[Value]]] = []
    done: list[Value] = []
    items = done
    wants_item = True
    at = 0
    end = len(text.rstrip())
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None:
            raise KeySyntax(f"character {at}: unexpected {text[at : at + 12]!r}")
        kind = token.lastgroup or ""
        word = token.group(kind)
        at = token.end()
        if kind == "comma":
            if wants_item or not stack:
                raise KeySyntax(f"character {at}: unexpected ','")
            wants_item = True
            continue
        if kind == "close":
            if not stack or (stack[-1][0] == "(") != (word == ")"):
                raise KeySyntax(f"character {at}: unexpected {word!r}")
            _, outer = stack.pop()
            closed = items
            if word == ")" and len(closed) == 1 and not wants_item:
                raise KeySyntax(f"character {at}: parentheses around one value make no tuple")
            outer.append(tuple(closed) if word == ")" else closed)
            items, wants_item = outer, False
            continue
        if not wants_item:
            raise KeySyntax(f"character {at}: ',' expected before {word[:12]!r}")
        if kind == "open":
            if len(stack) >= MAX_DEPTH:
                raise KeySyntax(f"nested deeper than {MAX_DEPTH}")
            stack.append((word, items))
            items = []
            continue
        items.append(_scalar(kind, word))
        wants_item = False
    if stack or len(done) != 1:
        raise KeySyntax("cut short" if stack else "not one value")
    return done[0]


def render(value: Value) -> str:
    """What Python prints for a parsed value."""
    if isinstance(value, Word):
        return str.__str__(value)
    if isinstance(value, tuple):
        inside = ", ".join(render(v) for v in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, list):
        return f"[{', '.join(render(v) for v in value)}]"
    return repr(value)


def _scalar(kind: str, word: str) -> Value:
    if kind == "string":
        return re.sub(r"\\(.)", lambda m: _SIMPLE_ESCAPES.get(m.group(1), m.group(0)), word[1:-1], flags=re.DOTALL)
    if kind == "number":
        if len(word) > 40:
            raise KeySyntax(f"a number of {len(word)} digits")
        return int(word) if re.fullmatch(r"-?\d+", word) else float(word)
    constants: dict[str, Value] = {"None": None, "True": True, "False": False}
    return constants[word] if word in constants else Word(word)


def _ranks(op: str, extras: tuple[Value, ...] | None) -> KeyRanks:
    if op not in CUTLASS_MOE_OPS or extras is None:
        return KeyRanks()
    if len(extras) == _MOE_WITH_RANKS:
        return KeyRanks(*(_whole(extras[i]) for i in (4, 5, 6, 7)))
    if len(extras) == _MOE_SIZES_ONLY:
        return KeyRanks(tp_size=_whole(extras[4]), ep_size=_whole(extras[5]))
    return KeyRanks()


def _whole(value: Value) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
