"""Searches for any of many literals at once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def has_fast_search() -> bool:
    """Is google-re2 installed (extra ``fast``)?"""
    try:
        import re2  # noqa: F401 (only whether it is there)
    except ImportError:
        return False
    return True


def search_any(literals: Iterable[bytes]) -> Callable[..., Any]:
    """``search(block, position)`` for any of the literals: google-re2 where it is installed (extra ``fast``), else one
    regular expression in the shape of a tree, which ``re`` walks faster than a flat alternation."""
    wanted = sorted(set(literals))
    try:
        import re2
    except ImportError:
        return re.compile(tree(wanted)).search
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    search: Callable[..., Any] = re2.compile(b"|".join(map(re2.escape, wanted)), options).search
    return search


def tree(literals: Sequence[bytes]) -> bytes:
    """A pattern that matches where any of the literals begins, with common beginnings shared."""
    groups = itertools.groupby(sorted(literals), key=lambda literal: literal[:1])
    parts: list[bytes] = []
    for first, members in groups:
        rests = [member[1:] for member in members]
        # One that ends here is the beginning of all others: they add nothing.
        parts.append(re.escape(first) + (b"" if b"" in rests else tree(rests)))
    if not parts:
        return b"(?!)"
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"
