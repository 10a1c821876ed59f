"""Pieces of patterns that the rules of every engine share."""

from __future__ import annotations

#: A whole number or decimal, thousands separated by commas: the value.
NUM = r"(?P<value>-?\d[\d,]*(?:\.\d+)?)"
#: Seconds, also where the tail of the word is cut off (``262.445080 sec``).
SECONDS = r" ?(?:second|(?:s|se|secs?|secon?)\b)"
#: GiB or GB as printed.
GIGA = r" ?(?P<unit>GiB|GB)\b"
