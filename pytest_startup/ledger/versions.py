"""What each release keeps of its tuning and how: what can be known from a cache depends on it.

From the sources of vLLM (to 2026-09) and SGLang (to 0.5.23), and of FlashInfer 0.6.7 to 0.7.4. "About" releases are
given as the first one that is certain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_startup.record import StartRecord

Version = tuple[int, ...]

#: GPU names as CUDA prints them → architectures that FlashInfer names its folders by.
GPU_ARCH = (
    (r"\b(?:GB300|B300)\b", ("103", "103a", "103f", "100f")),
    (r"\b(?:GB200|B200|B100)\b", ("100", "100a", "100f")),
    (r"\bGB10\b|\bDGX Spark\b", ("121", "121a", "120f", "121f")),
    (r"RTX PRO \d000 Blackwell|RTX 50[5-9]0", ("120", "120a", "120f")),
    (r"\b(?:GH200|H200|H100|H800|H20)\b", ("90", "90a")),
    (r"\b(?:L4|L40S?|RTX 40[5-9]0|RTX 6000 Ada)\b", ("89",)),
    (r"\bA(?:100|800|30)\b", ("80",)),
)


@dataclass(frozen=True)
class Tuning:
    """How a release tunes and saves. None: not known for this release.

    ``saves``: ``memory`` nothing, ``single`` only with one rank in the world, ``leader`` rank 0's records only,
    ``per-rank`` a file of each rank. ``averaged``: timings are averaged over the ranks, so equal tactics are by design.
    """

    engine: str | None = None
    version: Version | None = None
    saves: str | None = None
    averaged: bool | None = None

    def name(self) -> str:
        """``vLLM 0.31.0``, as messages say it."""
        version = ".".join(map(str, self.version)) if self.version else "(version unknown)"
        return f"{self.engine or 'this engine'} {version}"


def version_of(text: str) -> Version | None:
    """``0.29.1rc1.dev449+geb8798058`` → (0, 29, 1)."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(p or 0) for p in match.groups()) if match else None


def tuning_of(record: StartRecord) -> Tuning:
    """What is known of the engine of this record."""
    stated = [f for f in record.named("engine.version") if isinstance(f.value, str)]
    words = " ".join([*record.argv, *(f.evidence.text for f in stated[:3])]).lower()
    engine = "SGLang" if "sglang" in words else "vLLM" if "vllm" in words else None
    version = version_of(str(stated[0].value)) if stated else None
    if engine is None or version is None:
        return Tuning(engine, version)
    if engine == "SGLang":
        return Tuning(engine, version, "per-rank" if version >= (0, 5, 12) else "memory", version >= (0, 5, 19))
    if version < (0, 25):
        return Tuning(engine, version, "memory", False)
    if version < (0, 28):
        return Tuning(engine, version, "single", False)
    return Tuning(engine, version, "leader" if version < (0, 30) else "per-rank", True)


def key_shape(library: Version) -> tuple[int, tuple[int, ...]]:
    """Parts of a key, and allowed lengths of the CUTLASS MoE extras, of a FlashInfer release."""
    if library < (0, 6, 13):
        return 3, ()
    if library < (0, 6, 18):
        return 4, (0,)
    return (4, (20,)) if library < (0, 7, 2) else (4, (17,))


def has_generation(library: Version) -> bool:
    """Does FlashInfer of this version write ``_generation``, a hash of the content, into its file?"""
    return library >= (0, 6, 18)


def arches_of(gpu: str) -> tuple[str, ...]:
    """Architectures of a GPU name; empty: a name that we don't know."""
    return next((arches for pattern, arches in GPU_ARCH if re.search(pattern, gpu)), ())
