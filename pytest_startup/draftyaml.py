"""A drafted profile as commented YAML, in a form that our own strict reading takes back unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pytest_startup.draft import Draft
from pytest_startup.profile.yamltree import scalar


def render(draft: Draft) -> str:
    """The draft as YAML. Notes stand at its top."""
    lines = ["# yaml-language-server: $schema=profile.schema.json (written by: pytest-startup schema profile)"]
    if draft.notes:
        lines += ["#", "# To be looked at:", *(f"#   - {note}" for note in draft.notes)]
    _mapping(draft.data, "", 0, draft.remarks, lines)
    return "\n".join(lines) + "\n"


def _mapping(data: Mapping[str, Any], at: str, depth: int, remarks: Mapping[str, str], lines: list[str]) -> None:
    pad = "  " * depth
    for key, value in data.items():
        place = f"{at}.{key}" if at else key
        if place in remarks:
            lines.append(f"{pad}# {remarks[place]}")
        whole = f"{pad}{_text(key)}: {_inline(value)}"
        rows = isinstance(value, list) and any(isinstance(v, dict) for v in value)
        if isinstance(value, dict) and value and (depth < 2 or len(whole) > 100 or ": [{" in whole) and at != "caches":
            lines.append(f"{pad}{_text(key)}:")
            _mapping(value, place, depth + 1, remarks, lines)
        elif rows or (isinstance(value, list) and len(whole) > 100):
            lines.append(f"{pad}{_text(key)}:")
            lines += [f"{pad}  - {_inline(v)}" for v in value]
        else:
            lines.append(whole)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(k)}: {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(v) for v in value) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


#: Text that another YAML reader takes for a number, a switch or a date.
_ELSEWHERE = re.compile(r"(?i)[-+.]?[0-9][0-9_:.,-]*|0[xo][0-9a-f]+|yes|no|on|off|y|n")


def _text(text: str) -> str:
    """Plain where every YAML reader takes the same text back, else in quotes."""
    plain = re.fullmatch(r"[A-Za-z0-9_./~+-][A-Za-z0-9_./~+:@%=-]*", text) and not re.search(r"^[-~]$|^---|:$", text)
    if plain and scalar(text) == text and not _ELSEWHERE.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=False)
