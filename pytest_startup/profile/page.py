"""Every key of the profile as Markdown tables, written from the schema: the second half of ``docs/profile.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_startup.profile.validate import expectation, profile_schema

#: Shared forms of values, described once.
_FORMS = ("duration", "fraction", "size", "bounds", "range", "range_or_baseline", "rate", "gpus", "env", "args")


def tables() -> str:
    """The tables, one per mapping of the format, top level first."""
    schema = profile_schema()
    lines: list[str] = []
    for title, part in _mappings(schema, "", schema):
        lines += [
            f"### {title}",
            "",
            str(part["description"]),
            "",
            "| key | value | default | meaning |",
            "|---|---|---|---|",
        ]
        required = part.get("required", ())
        for key, inner in part["properties"].items():
            flat = _flat(inner, schema)
            default = json.dumps(flat["default"], ensure_ascii=False) if "default" in flat else ""
            if key in required:
                default = "**required**"
            lines.append(
                f"| `{key}` | {_cell(_value(inner, schema))} | {_cell(default)} | {_cell(flat['description'])} |"
            )
        lines.append("")
    lines += ["### Forms of values", "", "| form | meaning |", "|---|---|"]
    lines += [f"| {name.replace('_', ' ')} | {_cell(schema['$defs'][name]['description'])} |" for name in _FORMS]
    return "\n".join(lines) + "\n"


def _flat(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in part:
        part = {**schema["$defs"][_name(part)], **{k: v for k, v in part.items() if k != "$ref"}}
    return part


def _name(part: Mapping[str, Any]) -> str:
    return str(part["$ref"]).rpartition("/")[2]


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|")


def _value(part: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What may stand there, in a few words."""
    if "$ref" in part and _name(part) in _FORMS:
        return _name(part).replace("_", " ")
    flat = _flat(part, schema)
    if flat.get("type") == "array":
        return "list: " + _value(flat["items"], schema)
    if flat.get("type") == "object":
        extra = flat.get("additionalProperties")
        return "mapping: name → " + _value(extra, schema) if isinstance(extra, dict) else "mapping"
    return expectation(flat)


def _mappings(part: Mapping[str, Any], at: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping with fixed keys below ``part``, with the dotted key at which it stands."""
    flat = _flat(part, schema)
    if flat.get("properties"):
        yield (f"`{at}`" if at else "The file"), flat
    for key, inner in flat.get("properties", {}).items():
        if "$ref" not in inner or _name(inner) not in _FORMS:
            yield from _mappings(inner, f"{at}.{key}" if at else key, schema)
    if isinstance(flat.get("items"), dict):
        yield from _mappings(flat["items"], f"{at}[]", schema)
    extra = flat.get("additionalProperties")
    if isinstance(extra, dict):
        yield from _mappings(extra, f"{at}.NAME", schema)
    for branch in flat.get("anyOf", ()):
        yield from _mappings(branch, at, schema)
