"""The artifact tiers, on compile caches and logs of real vLLM 0.31.0 starts (CPU, TP 1 and TP 2), damaged by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers_caches import compile_case, fact, kinds

from pytest_startup.ledger.book import build as build_ledger
from pytest_startup.ledger.model import KINDS
from pytest_startup.observe.compile_layout import classify, factor_diff, hash_of, loaded_place, parse_key_factors
from pytest_startup.profile.expect import ExpectArtifacts
from pytest_startup.record import CacheFile

COLD = compile_case("tp2-cold")
H10, H64 = "5ba29b8c16", "9" * 64


def build(name, **kwargs):
    return build_ledger(compile_case(name), reference=COLD, **kwargs)


def cells(book, tier):
    return {r.rank: (r.expected, r.found, r.loaded, r.missed, r.written) for r in book.tier(tier)}


def aot(record, rank):
    return next(f for t in record.caches_before for f in t.files if f.path.endswith(f"rank_{rank}_0/model"))


def test_a_cold_start_writes_for_both_ranks_and_nothing_is_wrong():
    book = build_ledger(COLD)
    assert book.findings == ()
    assert [(r.tier, r.rank, r.found, r.written) for r in book.rows if r.tier in ("aot", "compile")] == [
        ("aot", "TP0", 0, 1),
        ("aot", "TP1", 0, 1),
        ("compile", "TP0", 0, 2),
        ("compile", "TP1", 0, 2),
    ]


def test_a_warm_start_loads_on_both_ranks_and_writes_nothing():
    book = build("tp2-warm")
    assert book.findings == ()
    assert cells(book, "aot") == {"TP0": (1, 1, 1, (), 0), "TP1": (1, 1, 1, (), 0)}
    assert cells(book, "compile") == {"TP0": (2, 2, None, (), 0), "TP1": (2, 2, None, (), 0)}
    assert book.exercised["aot"] is True


def test_one_rank_alone():
    book = build_ledger(compile_case("tp1-warm"), reference=compile_case("tp1-cold"))
    assert book.findings == ()
    assert cells(book, "aot") == {"rank 0": (1, 1, 1, (), 0)}


#: vLLM warns, compiles again on that rank alone, and overwrites the file.
REFUSED = ["artifact-refused", "changed-between-starts", "not-loaded", "written-when-warm"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # vLLM prints no warning: only rank 1's missing load line and the file tell.
        ("tp2-deleted", ["artifact-missing", "changed-between-starts", "not-loaded", "written-when-warm"]),
        ("tp2-emptied", ["artifact-damaged", *REFUSED]),
        ("tp2-truncated", REFUSED),
        ("tp2-edited", REFUSED),
        # It loads without a word on both ranks, and the engine then gives other text: only the hashes tell.
        ("tp2-copied", ["artifact-copied", "changed-between-starts"]),
        # Another cache root with the same content is hit as before.
        ("tp2-moved", []),
    ],
)  # fmt: skip
def test_each_damage_is_found_by_its_own_evidence(name, expected):
    book = build(name)
    assert kinds(book.findings) == expected
    assert {f.rank for f in book.findings} <= {"TP1", "rank_1_0", None}


def test_the_texts_of_a_deleted_artifact():
    book = build("tp2-deleted")
    assert cells(book, "aot") == {"TP0": (1, 1, 1, (), 0), "TP1": (1, 0, None, ("model",), 1)}
    by_kind = {f.kind: f for f in book.findings}
    assert by_kind["artifact-missing"].summary == "rank TP1 lacks model"
    assert by_kind["not-loaded"].summary == "rank TP1 loaded no compiled artifact"
    assert by_kind["not-loaded"].observed == ("TP0: loaded", "TP1: no load line")
    assert by_kind["written-when-warm"].summary == "restart-1 wrote 1 files of tier aot into a warm cache (rank_1_0)"


def test_a_copied_artifact_names_both_files():
    finding = next(f for f in build("tp2-copied").findings if f.kind == "artifact-copied")
    assert finding.summary == "the artifact of rank_1_0 is a copy of rank_0_0's"
    assert [e.where.rsplit("/", 2)[1:] for e in finding.evidence] == [["rank_0_0", "model"], ["rank_1_0", "model"]]


def test_what_the_profile_allows_is_no_finding():
    allowed = ExpectArtifacts(missing="any", recompiled="any", writes="any")
    assert kinds(build("tp2-truncated", artifacts=allowed).findings) == ["changed-between-starts", "not-loaded"]


def test_a_wiped_cache_is_not_expected_to_be_hit():
    wiped = replace(compile_case("tp2-deleted"), population="process+wiped:compile-cache")
    assert kinds(build_ledger(wiped, reference=COLD).findings) == ["artifact-missing"]


def test_a_new_hash_is_named_with_the_factor_that_differs():
    """A per-start value in the environment part of the hash: the cache is full and never hit (case 2)."""
    warm = compile_case("tp2-warm")

    def moved(f):
        if f.name == "compile.key_factors":
            return replace(f, value={**f.value, "env": {**f.value["env"], "VLLM_HOST_NAME_X": "pod-7f9"}})
        old = "90396c7ec96a7e0a6c5786f2c8decade7f050d1529fb232cfa50689bf0d12d49"
        return replace(f, detail={k: str(v).replace(old, "f" * 64) for k, v in f.detail.items()},
                       value=str(f.value).replace(old, "f" * 64),
                       evidence=replace(f.evidence, text=f.evidence.text.replace(old, "f" * 64)))  # fmt: skip

    record = replace(warm, facts=tuple(moved(f) for f in warm.facts))
    changed = [f for f in build_ledger(record, reference=COLD).findings if f.kind == "key-hash-changed"]
    assert changed[0].summary == "key hash changed: this start used ffffffffff…, reference 90396c7ec9…"
    assert changed[0].observed == ('env.VLLM_HOST_NAME_X: (absent) → "pod-7f9"',)


def test_an_empty_cache_in_the_place_of_a_full_one_is_a_move():
    warm = compile_case("tp2-warm")
    empty = replace(warm, caches_before=tuple(replace(t, files=(), exists=False) for t in warm.caches_before))
    finding = next(f for f in build_ledger(empty, reference=COLD).findings if f.kind == "path-moved")
    assert finding.observed == ("/cache is not there",)
    assert finding.summary.startswith("cache compile-cache was at /cache with ")


def test_equal_artifacts_of_data_parallel_engines_are_no_copies():
    """Each DP engine compiles the same shard: equal files are possible there."""
    warm = compile_case("tp2-copied")

    def as_dp(f: CacheFile) -> CacheFile:
        return replace(f, path=f.path.replace("rank_1_0", "rank_0_1"))

    trees = tuple(replace(t, files=tuple(as_dp(f) for f in t.files)) for t in warm.caches_before)
    line = "Directly load AOT compilation from path /c/{}/rank_0_{}/model"
    facts = [fact("compile.cache_loaded", "x", f"DP{d}", text=line.format(H64, d)) for d in (0, 1)]
    record = replace(warm, facts=tuple(facts), caches_before=trees, caches_after=trees, argv=("vllm",))
    assert kinds(build_ledger(record, warm=True).findings) == []


def test_an_unreadable_file_is_unknown_and_not_missing():
    warm = compile_case("tp2-warm")
    noted = fact("cache.unreadable", aot(warm, 1).path, reason="Permission denied")
    book = build_ledger(replace(warm, facts=(*warm.facts, noted)), reference=COLD)
    assert [(u.tier, u.reason) for u in book.unknowns if "content" in u.what] == [("aot", "Permission denied")]


def test_nothing_watched_and_nothing_said_gives_an_empty_ledger():
    book = build_ledger(replace(COLD, facts=(), caches_before=(), caches_after=()))
    assert (book.rows, book.findings, book.exercised) == ((), (), {})


@pytest.mark.parametrize(
    ("path", "tier", "key", "rank", "dp", "module", "kept"),
    [
        (f"{H10}/rank_1_0/backbone/artifact_compile_range_1_8192_subgraph_0", "compile", H10, 1, 0, "backbone", True),
        (f"{H10}/rank_0_2/eagle_head/vllm_compile_cache.py", "compile", H10, 0, 2, "eagle_head", True),
        (f"torch_compile_cache/torch_aot_compile/{H64}/rank_3_1/model", "aot", H64, 3, 1, None, True),
        ("rank_3_1/model", "aot", None, 3, 1, None, True),
        (f"torch_aot_compile/{H64}/inductor_cache/ab/cabc.py", "inductor", H64, None, None, None, True),
        (f"torch_aot_compile/{H64}/inductor_cache/locks/cabc.lock", "inductor", H64, None, None, None, False),
        ("A2B3C4D5" * 6 + "A2B3/kernel.cubin", "triton", None, None, None, None, True),
        (".cache/flashinfer/0.6.14/90a/cached_ops/sampling/sampling.so", "jit", None, None, None, None, True),
        (".cache/flashinfer/0.6.14/90a/flashinfer_jit.log", "jit", None, None, None, None, False),
        (".cache/flashinfer/0.6.14/90a/cached_ops/tmp/sampling.lock", "jit", None, None, None, None, False),
        ("deep_gemm/cache/kernel.gemm.0123456789abcdef0123/kernel.cubin", "deep-gemm", None, None, None, None, True),
        ("modelinfos/vllm-x.json", "plan", None, None, None, None, True),
        ("notes.txt", "other", None, None, None, None, True),
    ],
)  # fmt: skip
def test_the_layouts(path, tier, key, rank, dp, module, kept):
    at = classify(path)
    assert (at.tier, at.key, at.rank, at.dp, at.module, at.kept) == (tier, key, rank, dp, module, kept)


def test_the_kind_of_a_cache_decides_where_the_path_says_nothing():
    assert classify("x/y", "triton").tier == "triton"
    assert classify("x/y", "compile").tier == "compile"


def test_places_in_log_lines():
    line = f"Directly load AOT compilation from path /c/torch_compile_cache/torch_aot_compile/{H64}/rank_1_0/model"
    assert (loaded_place(line).rank, loaded_place(line).tier) == (1, "aot")
    assert loaded_place("Directly load the compiled graph(s) from the cache") is None
    assert hash_of(f"/c/torch_compile_cache/{H10}/rank_0_0/backbone") == H10
    assert hash_of("/c/torch_compile_cache") is None


def test_key_factors():
    assert parse_key_factors(b"") == {"damage": "empty"}
    assert parse_key_factors(b"{") == {"damage": "not JSON"}
    assert parse_key_factors(b"[]") == {"damage": "not a JSON object"}
    masked = parse_key_factors(b'{"code_hash": "ab", "env": {"MY_API_KEY": "hunter2", "VLLM_X": null}}')
    assert masked["code_hash"] == "ab"
    assert masked["env"]["MY_API_KEY"].startswith("sha256:")
    assert "hunter2" not in str(masked)
    assert factor_diff({"a": 1, "env": {"X": "1"}}, {"a": 1, "env": {"X": "2", "Y": None}}) == [
        'env.X: "1" → "2"',
        "env.Y: (absent) → null",
    ]
    assert factor_diff({"a": {"b": 1}}, {"a": {"b": 1}}) == []


def test_compiling_again_on_a_warm_start():
    """The lines of the cold start, printed by a start that should have been warm."""
    again = replace(COLD, name="restart-1", caches_before=COLD.caches_after)
    found = [f for f in build_ledger(again, reference=COLD).findings if f.kind == "recompiled"]
    assert [(f.tier, f.rank) for f in found] == [("aot", "TP0")]
    assert "saved AOT compiled function to" in found[0].observed[0]


def test_the_documentation_explains_every_kind_of_finding():
    text = (Path(__file__).parent.parent / "docs" / "ledger.md").read_text()
    assert [k for k in KINDS if f"`{k}`" not in text] == []
