"""Samples of a Prometheus text, each with its evidence: what the metrics of every engine have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pytest_startup.record import JSON, Evidence


class Sample(NamedTuple):
    """One line. ``name`` is without ``_total``, which the client library adds to counters; ``value`` may be NaN."""

    name: str
    labels: Mapping[str, str]
    value: float
    proof: Evidence


def samples(text: str, where: str, seconds: float | None = None) -> Iterator[Sample]:
    """All samples in order; of a text that does not parse, those before the first bad line.

    ``where`` (``GET /metrics``) and ``seconds`` since launch go into the evidence.
    """
    from prometheus_client.parser import text_string_to_metric_families

    families = iter(text_string_to_metric_families(text))
    while True:
        try:
            family = next(families)
        except (StopIteration, ValueError, KeyError, IndexError):
            return
        for sample in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sample.labels.items())
            shown = f"{sample.name}{{{labels}}} {sample.value:g}"[:400]
            proof = Evidence("endpoint", where, shown, seconds=seconds)
            yield Sample(sample.name.removesuffix("_total"), sample.labels, sample.value, proof)


def plain(value: float) -> JSON:
    """Whole numbers as such: Prometheus knows floats only."""
    return int(value) if value.is_integer() else value
