"""The profile against its JSON schema, with messages for people: what was expected, what stands there, how to write it.

A walker over the keywords that ``profile.schema.json`` uses (a test holds it to exactly these, and to the same verdicts
as the jsonschema package, whose import alone would cost more time than reading a profile). Two keywords are our own:
``x-expected`` says in words what is expected, ``x-suggest`` names the unit that may guess what was meant.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_startup.profile.problems import KeyPath, nearest
from pytest_startup.profile.units import suggest
from pytest_startup.profile.yamltree import Broken

SCHEMAS = Path(__file__).resolve().parent.parent / "schemas"
KEYWORDS = frozenset(
    {"type", "enum", "properties", "required", "additionalProperties", "propertyNames", "items", "minItems", "anyOf"}
    | {"uniqueItems", "minProperties", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum"}
    | {"$ref"}
)
NOTES = frozenset({"$schema", "$id", "$defs", "title", "description", "default", "examples", "x-expected", "x-suggest"})
_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping (key: value)",
    "null": "nothing",
}


@lru_cache(maxsize=1)
def profile_schema() -> Mapping[str, Any]:
    """The shipped schema of profiles."""
    data: Mapping[str, Any] = json.loads((SCHEMAS / "profile.schema.json").read_text("utf-8"))
    return data


def kind_of(value: object) -> str:
    """JSON type of a value: string, integer, number, boolean, array, object, null."""
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object" if isinstance(value, dict) else "null"


def found(value: object) -> str:
    """The value as named in a message."""
    kind = kind_of(value)
    if kind == "string":
        text = str(value)
        return f"the text {json.dumps(text if len(text) <= 60 else text[:59] + '…', ensure_ascii=False)}"
    if kind in ("integer", "number"):
        return f"the number {getattr(value, 'source', value)}"
    if kind == "boolean":
        return "true" if value else "false"
    return {"array": "a list", "object": "a mapping", "null": "nothing"}[kind]


def validate(data: object, schema: Mapping[str, Any]) -> list[tuple[KeyPath, str]]:
    """Everything that is wrong with ``data``: path and message. Empty: it is valid."""
    return list(_Walker(schema).check(data, schema, ()))


def expectation(schema: Mapping[str, Any]) -> str:
    """What a value of ``schema`` (references followed) must be, in words."""
    if "x-expected" in schema:
        return str(schema["x-expected"])
    if "enum" in schema:
        values = [str(v) for v in schema["enum"]]
        return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"
    kinds = schema.get("type", "string")
    words = " or ".join(_WORDS[k] for k in ([kinds] if isinstance(kinds, str) else kinds))
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{words} from {low} to {high}"
    if low is not None:
        return f"{words} of at least {low}"
    return f"{words} above {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else words


class _Walker:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def flat(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema with its ``$ref`` followed; what stands beside a reference wins."""
        while "$ref" in schema:
            target = self.root["$defs"][schema["$ref"].rpartition("/")[2]]
            schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
        return schema

    def check(self, value: object, schema: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
        if isinstance(value, Broken):
            return
        schema = self.flat(schema)
        if "anyOf" in schema:
            yield from self.any_of(value, schema, path)
            return
        if not self.type_fits(value, schema):
            yield path, self.wrong(value, schema)
            return
        if "enum" in schema and not any(type_equal(value, v) for v in schema["enum"]):
            yield path, self.wrong(value, schema)
        elif isinstance(value, dict):
            yield from self.mapping(value, schema, path)
        elif isinstance(value, list):
            yield from self.array(value, schema, path)
        elif self.out_of_bounds(value, schema):
            yield path, self.wrong(value, schema)

    def type_fits(self, value: object, schema: Mapping[str, Any]) -> bool:
        wanted = schema.get("type")
        if wanted is None:
            return True
        kinds = [wanted] if isinstance(wanted, str) else wanted
        kind = kind_of(value)
        return kind in kinds or (kind == "integer" and "number" in kinds)

    def any_of(self, value: object, schema: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
        branches = [self.flat(b) for b in schema["anyOf"]]
        results = [list(self.check(value, b, path)) for b in branches]
        if not all(results):
            return
        inside = [r for b, r in zip(branches, results, strict=True) if self.type_fits(value, b)]
        if isinstance(value, (dict, list)) and len(inside) == 1:
            yield from inside[0]
        else:
            yield path, self.wrong(value, schema)

    def mapping(self, value: dict[str, Any], schema: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
        known = schema.get("properties", {})
        extra = schema.get("additionalProperties", True)
        names = schema.get("propertyNames", {})
        for key in schema.get("required", ()):
            if key not in value:
                yield path, f"{key} is missing; expected {self.expected(known[key])}"
        if len(value) < schema.get("minProperties", 0):
            yield path, f"expected at least one of {', '.join(known)}; found an empty mapping"
        for key, item in value.items():
            if key in known:
                yield from self.check(item, known[key], (*path, key))
            elif extra is False:
                near = nearest(key, known)
                hint = f"did you mean {near}?" if near else f"known here: {', '.join(known)}"
                yield (*path, key), f"unknown key; {hint}"
            elif self.out_of_bounds(key, names):
                yield (*path, key), f"expected {names['x-expected']} as the key"
            elif extra is not True:
                yield from self.check(item, extra, (*path, key))

    def array(self, value: list[Any], schema: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
        if len(value) < schema.get("minItems", 0):
            yield path, "expected at least one entry; found an empty list"
        for index, item in enumerate(value):
            yield from self.check(item, schema.get("items", {}), (*path, index))
            if schema.get("uniqueItems") and any(type_equal(item, v) for v in value[:index]):
                yield (*path, index), f"given twice: {found(item)}; remove one"

    def out_of_bounds(self, value: object, schema: Mapping[str, Any]) -> bool:
        if isinstance(value, str):
            pattern = schema.get("pattern")
            short = len(value) < schema.get("minLength", 0) or len(value) > schema.get("maxLength", len(value))
            return short or (pattern is not None and not re.compile(pattern[1:-1]).fullmatch(value))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if value < schema.get("minimum", value) or value > schema.get("maximum", value):
                return True
            return "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]
        return False

    def expected(self, schema: Mapping[str, Any]) -> str:
        return expectation(self.flat(schema))

    def wrong(self, value: object, schema: Mapping[str, Any]) -> str:
        text = f"expected {self.expected(schema)}; found {found(value)}"
        hint = self.hint(value, schema)
        return f"{text}; {hint}" if hint else text

    def hint(self, value: object, schema: Mapping[str, Any]) -> str | None:
        """The nearest legal spelling, if there is one."""
        kind = kind_of(value)
        if "x-suggest" in schema:
            guess = suggest(schema["x-suggest"], value)
            return f"write {guess}" if guess else None
        if "anyOf" in schema:
            listed = any(c.isdigit() for c in str(value))  # a word alone is more likely a misspelled word
            branches = [b for b in map(self.flat, schema["anyOf"]) if listed or b.get("type") != "array"]
            hints = (self.hint(value, b) for b in branches if kind == "string" or b.get("type") == "array")
            return next((hint for hint in hints if hint), None)
        if "enum" in schema and kind == "string":
            near = nearest(str(value), [str(v) for v in schema["enum"]])
            return f"did you mean {near}?" if near else None
        wanted = schema.get("type", ())
        if "string" in wanted and kind in ("boolean", "integer", "number"):
            return (
                f'write "{str(getattr(value, "source", value)).lower()}" in quotes' if "pattern" not in schema else None
            )
        if wanted == "array" and kind in ("string", "integer", "number"):
            return self.as_list(value, self.flat(schema.get("items", {})))
        if kind == "string" and isinstance(wanted, str):
            if wanted == "boolean":
                truth = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
                guess = truth.get(str(value).lower())
                return f"write {guess}" if guess else None
            if wanted in ("integer", "number") and re.fullmatch(r"-?[0-9][0-9_,]*(\.[0-9]+)?", str(value)):
                return f"write {re.sub('[_,]', '', str(value))} without quotes"
        return None

    def as_list(self, value: object, items: Mapping[str, Any]) -> str | None:
        """A command line or a value without its brackets as the list that was meant, one element per word."""
        text = str(getattr(value, "source", value))
        whole = any(self.flat(branch).get("type") == "object" for branch in items.get("anyOf", ()))  # a pattern
        words = [text] if whole else list_of_words(text)
        if not words or not all(self.fits(w, items) or (w.isdigit() and self.fits(int(w), items)) for w in words):
            return None
        shown = (word if _PLAIN.fullmatch(word) else json.dumps(word, ensure_ascii=False) for word in words)
        return f"write [{', '.join(shown)}]"

    def fits(self, value: object, schema: Mapping[str, Any]) -> bool:
        return not any(self.check(value, schema, ()))


#: A word that means itself in a YAML list.
_PLAIN = re.compile(r"(?!(?:true|false|null)$)(?:--?)?[A-Za-z0-9_./~$](?:[A-Za-z0-9_./=+@~:-]*[A-Za-z0-9_./=+@~-])?")


def list_of_words(text: str) -> list[str]:
    """``"--tp 2"`` and ``"0, 1"`` as words; none where a quote is not closed."""
    if not re.search(r"\s", text.strip()):
        return [word for word in text.strip().split(",") if word]
    try:
        return [word.rstrip(",") for word in shlex.split(text) if word.rstrip(",")]
    except ValueError:
        return []


def type_equal(a: object, b: object) -> bool:
    """Equality as JSON sees it: 1 is not true."""
    return isinstance(a, bool) == isinstance(b, bool) and a == b
