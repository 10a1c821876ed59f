"""Every field of a good cache, changed by hand: each change is found, or is listed as undetectable with the reason.

Three situations: the file alone (FlashInfer 0.6.18, sealed with ``_generation``); the same with the seal recomputed by
the forger; and a start with the start before it in the records, where nothing can be changed unseen.
"""

from __future__ import annotations

import json

import pytest
from helpers_caches import fact, hits, kinds, place, seal, shot, start, tuned, version, whole, write

from pytest_startup.ledger.book import build as build_ledger
from pytest_startup.profile.expect import ExpectAutotune

LIBRARY, GPU = "0.6.18", "NVIDIA H200"
NAME = "autotune_configs.json"
TWO = ExpectAutotune(ranks=2, records_per_rank=42)
FORGED = "a forger who recomputes _generation leaves no trace in the file; only an earlier record of it tells"


def first_key(data):
    return next(k for k in data if k.startswith("("))


def swap(data, old, new):
    """The same file with one key rewritten."""
    key = first_key(data)
    assert old in key, f"{old!r} is not in {key!r}"
    return {(k.replace(old, new) if k == key else k): v for k, v in data.items()}


def value(data, new):
    return {**data, first_key(data): new}


def meta(data, **changes):
    made = {**data["_metadata"], **changes}
    return {**data, "_metadata": {k: v for k, v in made.items() if v is not None}}


EXTRAS = "(torch.bfloat16, torch.bfloat16, torch.bfloat16, 2, 1, 0, 2, 0, 1, 0, False,"
#: field → (mutation, kinds that the file alone gives when the forger seals it again; empty: undetectable, see REASONS)
FIELDS = {
    "_metadata.flashinfer_version": (
        lambda d: meta(d, flashinfer_version="0.6.17"),
        {"metadata-wrong", "older-key-format"},
    ),
    "_metadata.flashinfer_version unknown": (lambda d: meta(d, flashinfer_version="unknown"), {"metadata-wrong"}),
    "_metadata.flashinfer_version wildcard": (lambda d: meta(d, flashinfer_version="*"), {"metadata-wildcard"}),
    "_metadata.flashinfer_version gone": (lambda d: meta(d, flashinfer_version=None), {"metadata-wrong"}),
    "_metadata.gpu": (lambda d: meta(d, gpu="NVIDIA GB10"), {"metadata-wrong", "foreign-arch"}),
    "_metadata.gpu of the same architecture": (lambda d: meta(d, gpu="NVIDIA H100 80GB HBM3"), {"metadata-wrong"}),
    "_metadata.gpu wildcard": (lambda d: meta(d, gpu="*"), {"metadata-wildcard"}),
    "_metadata.gpu gone": (lambda d: meta(d, gpu=None), {"metadata-wrong"}),
    "_metadata.cuda_version": (lambda d: meta(d, cuda_version="12.9"), set()),
    "_metadata.cublas_version": (lambda d: meta(d, cublas_version="1.2.3"), set()),
    "_metadata.cudnn_version": (lambda d: meta(d, cudnn_version="1"), set()),
    "_metadata.cudnn_frontend_version": (lambda d: meta(d, cudnn_frontend_version="1"), set()),
    "_metadata.cuda_version wildcard": (lambda d: meta(d, cuda_version="*"), {"metadata-wildcard"}),
    "_metadata gone": (lambda d: {k: v for k, v in d.items() if k != "_metadata"}, {"metadata-wrong"}),
    "_metadata no object": (lambda d: {**d, "_metadata": "x"}, {"file-layout", "metadata-wrong"}),
    "key: op": (lambda d: swap(d, "gemm1", "gemm9"), {"rank-incomplete", "file-layout"}),
    "key: runner": (
        lambda d: swap(d, "'MoERunner'", "'OtherRunner'"),
        {"runner-mismatch", "rank-incomplete", "file-layout"},
    ),
    "key: bucket": (lambda d: swap(d, "((1, 64)", "((3, 64)"), {"rank-incomplete", "file-layout"}),
    "key: hidden size": (lambda d: swap(d, "((1, 64)", "((1, 65)"), {"rank-incomplete", "file-layout"}),
    "key: experts": (lambda d: swap(d, "(4, 96, 64)", "(8, 96, 64)"), {"rank-incomplete"}),
    "key: dtype": (lambda d: swap(d, "torch.bfloat16, 2,", "torch.float16, 2,"), {"rank-incomplete"}),
    "key: top_k": (lambda d: swap(d, "torch.bfloat16, 2,", "torch.bfloat16, 4,"), {"rank-incomplete"}),
    "key: tp_size": (lambda d: swap(d, ", 2, 1, 0, 2, 0,", ", 2, 4, 0, 2, 0,"), {"rank-incomplete", "sizes-wrong"}),
    "key: tp_rank": (lambda d: swap(d, ", 2, 1, 0, 2, 0,", ", 2, 1, 1, 2, 0,"), {"sizes-wrong", "rank-incomplete"}),
    "key: ep_size": (lambda d: swap(d, ", 2, 1, 0, 2, 0,", ", 2, 1, 0, 4, 0,"), {"sizes-wrong", "rank-incomplete"}),
    "key: ep_rank": (lambda d: swap(d, ", 2, 1, 0, 2, 0,", ", 2, 1, 0, 2, 1,"), {"rank-incomplete"}),
    "key: cluster_size": (lambda d: swap(d, "2, 0, 1, 0, False", "2, 0, 2, 0, False"), {"rank-incomplete"}),
    "key: a flag": (lambda d: swap(d, "1, 0, False, False", "1, 0, True, False"), {"rank-incomplete"}),
    "key: activation": (lambda d: swap(d, "False, 3, False, True", "False, 4, False, True"), {"rank-incomplete"}),
    "key: extras gone": (
        lambda d: swap(d, first_key(d)[first_key(d).index(", (torch") :], ")"),
        {"older-key-format", "rank-incomplete"},
    ),
    "key: extras empty": (
        lambda d: swap(d, first_key(d)[first_key(d).index("(torch") :], "())"),
        {"older-key-format", "rank-incomplete"},
    ),
    "key: spaces": (lambda d: swap(d, "((1, 64)", "((1,  64)"), {"key-malformed"}),
    "key: no tuple": (lambda d: swap(d, first_key(d), "gemm1"), {"key-malformed"}),
    "key gone": (lambda d: {k: v for k, v in d.items() if k != first_key(d)}, {"rank-incomplete"}),
    "key added": (
        lambda d: {**d, first_key(d).replace("((1, 64)", "((5, 64)"): ["MoERunner", 1]},
        {"rank-surplus", "file-layout"},
    ),
    "value: runner": (lambda d: value(d, ["OtherRunner", 5]), {"runner-mismatch"}),
    "value: tactic": (lambda d: value(d, ["MoERunner", 23]), set()),
    "value: fallback": (lambda d: value(d, ["MoERunner", -1]), set()),
    "value: tactic is text": (lambda d: value(d, ["MoERunner", "fast"]), {"tactic-malformed"}),
    "value: tactic is null": (lambda d: value(d, ["MoERunner", None]), {"tactic-malformed"}),
    "value: tactic below -1": (lambda d: value(d, ["MoERunner", -7]), {"tactic-malformed"}),
    "value: no list": (lambda d: value(d, 5), {"file-layout", "rank-incomplete"}),
    "value: empty list": (lambda d: value(d, []), {"file-layout", "rank-incomplete"}),
}
REASONS = {
    "_metadata.cuda_version": "no engine prints it and no path holds it; FlashInfer itself refuses the file then",
    "_metadata.cublas_version": "as cuda_version",
    "_metadata.cudnn_version": "as cuda_version",
    "_metadata.cudnn_frontend_version": "as cuda_version",
    "value: tactic": "one tactic is as good as another: no measurement is kept before FlashInfer 0.7.4",
    "value: fallback": "FlashInfer writes -1 itself where every tactic failed",
}


@pytest.fixture(scope="module")
def good():
    return whole("flashinfer-0.6.18-shared")


def judge(tmp_path, content, before=None):
    """The ledger of a warm start on this file, two ranks, every op hit."""
    cache = shot(write(tmp_path, LIBRARY, {NAME: content}))
    facts = [version(), fact("gpu.name", GPU), *hits("TP0_EP0", 10), *hits("TP1_EP1", 20)]
    return build_ledger(start("restart-1", facts, cache), TWO, reference=before, warm=True)


def test_the_good_cache_has_no_finding(tmp_path, good):
    assert judge(tmp_path, good).findings == ()


@pytest.mark.parametrize("field", FIELDS)
def test_an_edit_without_a_new_seal_is_always_found(tmp_path, good, field):
    mutated = FIELDS[field][0](good)
    assert mutated != good
    found = kinds(judge(tmp_path, mutated).findings)
    assert "file-edited" in found


@pytest.mark.parametrize("field", FIELDS)
def test_an_edit_with_a_new_seal_is_found_by_its_meaning_or_listed_as_undetectable(tmp_path, good, field):
    mutate, expected = FIELDS[field]
    found = set(kinds(judge(tmp_path, seal(mutate(good))).findings))
    if expected:
        assert expected <= found, f"{field}: {found}"
        assert field not in REASONS
    else:
        assert found == set()
        assert REASONS[field]


@pytest.mark.parametrize("field", FIELDS)
def test_against_the_start_before_nothing_can_be_changed_unseen(tmp_path, good, field):
    before = shot(write(tmp_path / "then", LIBRARY, {NAME: good}))
    reference = start("reference", [version(), *tuned("TP0_EP0", 10), *tuned("TP1_EP1", 20)], after=before)
    book = judge(tmp_path / "now", seal(FIELDS[field][0](good)), reference)
    finding = next(f for f in book.findings if f.kind == "changed-between-starts")
    assert finding.observed == (f"changed: {place(LIBRARY)}/{NAME}",)
    assert finding.tier == "autotune"


def test_untouched_between_two_starts_is_no_change(tmp_path, good):
    before = shot(write(tmp_path / "then", LIBRARY, {NAME: good}))
    reference = start("reference", [version(), *tuned("TP0_EP0", 10), *tuned("TP1_EP1", 20)], after=before)
    assert judge(tmp_path / "now", good, reference).findings == ()


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b'{"_metadata": {"gpu": "x"', "cut short at byte 25"),
        (b"\x80\x04\x95pickle", "not text"),
        (b"[1, 2]", "not a JSON object"),
        (b'{"a": }', "not JSON: Expecting value: line 1 column 7 (char 6)"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_damaged_file_is_named_with_its_damage(tmp_path, content, damage):
    book = judge(tmp_path, content)
    finding = next(f for f in book.findings if f.kind == "file-damaged")
    assert finding.observed == (damage,)
    assert {f.kind for f in book.findings} <= {"file-damaged", "rank-missing"}


@pytest.mark.parametrize(
    ("change", "mark"),
    [
        (lambda t: t.replace("  ", " "), "not laid out as FlashInfer writes it (spaces, line ends)"),
        (lambda t: t + "\n", "not laid out as FlashInfer writes it (spaces, line ends)"),
        (lambda t: t.replace('"cuda_version"', '"gpu": "a",\n    "cuda_version"'), "key written twice: 'gpu'"),
    ],
)
def test_the_trace_of_an_editor_is_found(tmp_path, good, change, mark):
    text = json.dumps(good, indent=2)
    book = judge(tmp_path, change(text).encode())
    assert mark in next(f for f in book.findings if f.kind == "file-layout").observed


def test_older_files_have_no_seal_and_are_not_blamed_for_it(tmp_path):
    """FlashInfer 0.6.13 writes no ``_generation``."""
    cache = shot(write(tmp_path, "0.6.13", {NAME: whole("flashinfer-0.6.13", "autotune_configs_dp0_rank0.json")}))
    facts = [version(), fact("gpu.name", GPU), *hits("TP0_EP0", 10), *hits("TP1_EP1", 20)]
    assert build_ledger(start("restart-1", facts, cache), TWO, warm=True).findings == ()


def test_a_missing_seal_of_a_release_that_writes_one_is_found(tmp_path, good):
    book = judge(tmp_path, {k: v for k, v in good.items() if k != "_generation"})
    finding = next(f for f in book.findings if f.kind == "metadata-wrong")
    assert finding.observed == ("no _generation, which FlashInfer 0.6.18 always writes",)


def test_old_three_part_keys_in_a_newer_folder_are_never_hit(tmp_path, good):
    old = whole("flashinfer-0.6.7", "autotune_configs_dp0_rank0.json")
    moved = {k: v for k, v in old.items() if k.startswith("(")}
    book = judge(tmp_path, seal({"_metadata": good["_metadata"], **moved}))
    finding = next(f for f in book.findings if f.kind == "older-key-format")
    assert finding.summary == "42 of 42 keys have another form than FlashInfer 0.6.18 looks for: never hit"
    assert finding.expected == "4 parts, 20 extras for MoE"
    assert finding.observed == ("3 parts",)
