"""The case that made the ledger: 42 genuine records cover one rank; two ranks need 84, each its own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from helpers_caches import (
    DATA,
    GEMM1,
    fact,
    hits,
    kinds,
    log_facts,
    place,
    rekeyed,
    seal,
    shot,
    start,
    tuned,
    version,
    whole,
    write,
)

from pytest_startup.ledger.book import build as build_ledger
from pytest_startup.observe.cache_facts import content_facts
from pytest_startup.profile.expect import ExpectAutotune
from pytest_startup.record import CacheFile, CacheTree
from pytest_startup.record_json import record_from_json, record_to_json

TWO = ExpectAutotune(ranks=2, records_per_rank=42)
R0, R1 = "TP0_EP0", "TP1_EP1"
LIBRARY = "0.6.18"


def both_hit():
    return [version("0.29.1rc1.dev449+geb8798058"), *hits(R0, 10), *hits(R1, 20)]


def rows(book):
    return {r.rank: r for r in book.tier("autotune")}


@pytest.fixture
def leader(tmp_path):
    """Rank 0's 42 records only: what vLLM from about 0.28 to 0.29 saves."""
    return shot(write(tmp_path, LIBRARY, {"autotune_configs.json": whole("flashinfer-0.6.18-leader")}))


@pytest.fixture
def both(tmp_path):
    """84 records that FlashInfer 0.6.18 wrote for two ranks, in one file."""
    return shot(write(tmp_path, LIBRARY, {"autotune_configs.json": whole("flashinfer-0.6.18-shared")}))


@pytest.fixture
def per_rank(tmp_path):
    """42 records in a file of each rank, as vLLM from about 0.30 keeps them."""
    names = [f"autotune_configs_dp0_rank{r}.json" for r in (0, 1)]
    return shot(write(tmp_path, LIBRARY, {n: whole("flashinfer-0.6.18", n) for n in names}))


def test_84_own_records_in_one_file_are_enough(both):
    reference = start("reference", [version(), *tuned(R0, 10), *tuned(R1, 20)], after=both)
    book = build_ledger(start("restart-1", both_hit(), both), TWO, reference=reference)
    assert [(r.rank, r.expected, r.found, r.own, r.loaded, r.hit, r.tuned, r.missed) for r in book.rows] == [
        (R0, 42, 42, 42, 42, ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2"), (), ()),
        (R1, 42, 42, 42, 42, ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2"), (), ()),
    ]
    assert book.findings == ()
    assert rows(book)[R1].provenance == f"tuned by {R1}: head/engine.log:20"


def test_a_file_of_each_rank_is_enough(per_rank):
    reference = start("reference", [version(), *tuned(R0, 10), *tuned(R1, 20)], after=per_rank)
    book = build_ledger(start("restart-1", [version(), *both_hit()[1:]], per_rank), TWO, reference=reference)
    assert [(r.rank, r.found, r.own) for r in book.rows] == [(R0, 42, 42), (R1, 42, 42)]
    assert book.findings == ()


def test_42_records_of_one_rank_leave_the_other_without(leader):
    reference = start("reference", [version("0.29.0"), *tuned(R0, 10), *tuned(R1, 20)], after=leader)
    facts = [version("0.29.0"), *hits(R0, 10), fact("autotune.loaded", 42, R1, 20), *tuned(R1, 21)]
    book = build_ledger(start("restart-1", facts, leader), TWO, reference=reference)
    assert rows(book)[R0].found == 42
    assert rows(book)[R1].found == 0
    assert rows(book)[R1].own == 0
    assert kinds(book.findings) == ["rank-missing", "ranks-diverge", "tuned-again"]
    missing = next(f for f in book.findings if f.kind == "rank-missing")
    assert missing.summary == "rank TP1_EP1 has no records of its own; TP0_EP0 has 42"
    assert missing.observed == ("TP0_EP0: 42 records", "TP1_EP1: 0 records")
    assert missing.evidence[0].text == "42 records, none for TP1_EP1"
    assert "vLLM 0.29.0 saves rank 0's records only" in missing.helps[0]


def test_without_any_log_line_of_the_second_rank_it_is_red_all_the_same(leader):
    """Rank 0's hit says nothing about rank 1, which is silent here and named by nothing."""
    reference = start("reference", [version("0.29.0"), *tuned(R0, 10)], after=leader)
    book = build_ledger(start("restart-1", [version("0.29.0"), *hits(R0, 10)], leader), TWO, reference=reference)
    assert [(r.rank, r.found) for r in book.rows] == [(R0, 42), (R1, 0)]
    assert kinds(book.findings) == ["not-hit", "rank-missing"]
    assert {f.rank for f in book.findings} == {R1}


def test_the_lines_that_flashinfer_prints_then(leader):
    """FlashInfer 0.6.18 really run on this file as two ranks: rank 0 hits, rank 1 reads 42, tunes both, saves 84."""
    lines = json.loads((DATA / "flashinfer-log-lines.json").read_text())["0.6.18-leader-warm"]
    at = next(n for n, line in enumerate(lines) if n and "Loaded" in line)
    text = ["INFO 11-29 17:53:58 [core.py:129] Initializing a V1 LLM engine (v0.29.0) with config: model='m'"]
    text += [f"(Worker_TP0_EP0 pid=11) {line}" for line in lines[:at]]
    text += [f"(Worker_TP1_EP1 pid=12) {line}" for line in lines[at:]]
    text = [line.replace("/cache/0.6.18-leader-after", f"/in/the/container/{place(LIBRARY)}") for line in text]
    reference = start("reference", tuned(R0), after=leader)
    book = build_ledger(start("restart-1", log_facts("\n".join(text)), leader), TWO, reference=reference)
    told = rows(book)
    assert (told[R0].loaded, len(told[R0].hit), told[R0].tuned, told[R0].saved) == (42, 2, (), None)
    assert (told[R1].loaded, told[R1].hit, len(told[R1].tuned), told[R1].saved) == (42, (), 2, 42)
    assert kinds(book.findings) == ["rank-missing", "ranks-diverge", "tuned-again"]


def test_42_copied_under_the_other_ranks_keys_is_found_by_the_priming_log(tmp_path):
    """84 records with right keys, right counts and a right _generation; but only rank 0 ever tuned."""
    first = whole("flashinfer-0.6.18-leader")
    forged = seal({**first, **rekeyed(first, 1)})
    cache = shot(write(tmp_path / "forged", LIBRARY, {"autotune_configs.json": dict(sorted_file(forged))}))
    reference = start("reference", [version("0.29.0"), *tuned(R0, 10), fact("autotune.started", "", R1, 20)])
    book = build_ledger(start("restart-1", both_hit(), cache), TWO, reference=reference)
    assert [(r.rank, r.found) for r in book.rows] == [(R0, 42), (R1, 42)]
    assert kinds(book.findings) == ["records-copied"]
    copied = book.findings[0]
    assert copied.rank == R1
    assert copied.summary == "the 42 records of rank TP1_EP1 are not genuine: copied under its key"
    assert copied.observed == (
        "reference shows TP0_EP0 nothing loaded; gemm1 tuned 21/21; gemm2 tuned 21/21;"
        " TP1_EP1 never tuned or loaded any",
    )


def test_copies_without_a_priming_log_are_unknowable_where_equal_is_by_design(tmp_path):
    first = whole("flashinfer-0.6.18-leader")
    forged = seal({**first, **rekeyed(first, 1)})
    cache = shot(write(tmp_path, LIBRARY, {"autotune_configs.json": dict(sorted_file(forged))}))
    book = build_ledger(start("restart-1", both_hit(), cache), TWO, warm=True)
    assert book.findings == ()
    said = [u for u in book.unknowns if "copies" in u.what]
    assert [(u.rank, u.what) for u in said] == [
        (R1, "whether the records of TP1_EP1 are copies of TP0_EP0's (42 equal)")
    ]
    assert said[0].reason == "vLLM 0.29.1 averages timings over the ranks: equal tactics are by design"


def test_copies_are_proven_by_equality_where_ranks_tune_on_their_own(tmp_path):
    first = whole("flashinfer-0.6.18-leader")
    forged = seal({**first, **rekeyed(first, 1)})
    names = {"rank_tp0_pp0_dp0.json": first, "rank_tp1_pp0_dp0.json": seal(rekeyed(first, 1))}
    cache = shot(write(tmp_path, LIBRARY, names))
    facts = [
        version("0.5.14", "SGLang"),
        fact("autotune.started", "", "TP0", 3),
        fact("autotune.started", "", "TP1", 4),
    ]
    book = build_ledger(start("restart-1", facts, cache, argv=("python", "-m", "sglang.launch_server")), TWO, warm=True)
    assert kinds(book.findings) == ["records-copied"]
    assert "all 42 records equal those of TP0, though ranks tune on their own here" in book.findings[0].observed[0]
    assert len(forged) == 86  # 84 records, _metadata, _generation


def test_independently_tuned_ranks_are_not_called_copies(tmp_path):
    names = {
        f"rank_tp{r}_pp0_dp0.json": whole("flashinfer-0.6.18", f"autotune_configs_dp0_rank{r}.json") for r in (0, 1)
    }
    cache = shot(write(tmp_path, LIBRARY, names))
    facts = [
        version("0.5.14", "SGLang"),
        fact("autotune.started", "", "TP0", 3),
        fact("autotune.started", "", "TP1", 4),
    ]
    book = build_ledger(start("restart-1", facts, cache, argv=("python", "-m", "sglang.launch_server")), TWO, warm=True)
    assert book.findings == ()


def test_a_copied_file_is_found_by_its_keys(tmp_path):
    first = whole("flashinfer-0.6.18", "autotune_configs_dp0_rank0.json")
    names = {"autotune_configs_dp0_rank0.json": first, "autotune_configs_dp0_rank1.json": first}
    cache = shot(write(tmp_path, LIBRARY, names))
    book = build_ledger(start("restart-1", both_hit(), cache), TWO, warm=True)
    assert kinds(book.findings) == ["foreign-rank", "rank-missing"]
    foreign = next(f for f in book.findings if f.kind == "foreign-rank")
    assert foreign.summary == "the file of TP1_EP1 holds 42 records that are keyed for another rank"
    assert foreign.observed == ("42 keyed for rank 0",)
    assert foreign.evidence[0].text.startswith("('trtllm::fused_moe::gemm1', 'MoERunner', ((1, 64)")


def test_one_missing_bucket_is_named(tmp_path):
    data = whole("flashinfer-0.6.18-shared")
    gone = next(k for k in data if "gemm2" in k and "((128, 64)" in k and ", 2, 1, 1, 0," in k)
    del data[gone]
    cache = shot(write(tmp_path, LIBRARY, {"autotune_configs.json": seal(data)}))
    book = build_ledger(start("restart-1", both_hit(), cache), TWO, warm=True)
    assert kinds(book.findings) == ["rank-incomplete"]
    assert book.findings[0].summary == ("rank TP1_EP1 has 41 records of 42: lacks trtllm::fused_moe::gemm2 bucket 128")


def test_more_records_than_expected_are_no_match_either(both):
    book = build_ledger(start("restart-1", both_hit(), both), ExpectAutotune(2, 21), warm=True)
    assert kinds(book.findings) == ["rank-surplus"]
    assert book.findings[0].summary == "rank TP0_EP0 has 42 records, 21 are expected"


@pytest.mark.parametrize("folder", ["flashinfer-0.6.13", "flashinfer-0.7.2", "flashinfer-0.7.4"])
def test_without_ranks_in_the_keys_a_shared_file_covers_all_and_the_rest_is_unknown(tmp_path, folder):
    """FlashInfer to 0.6.17, and from 0.7.2 on: 42 records serve both ranks; only hit lines count per rank."""
    library = folder.rpartition("-")[2]
    cache = shot(write(tmp_path, library, {"autotune_configs.json": whole(folder, "autotune_configs_dp0_rank0.json")}))
    book = build_ledger(start("restart-1", both_hit(), cache), TWO, warm=True)
    assert [(r.rank, r.found, r.own) for r in book.rows] == [(R0, 42, None), (R1, 42, None)]
    assert book.findings == ()
    reason = next(u.reason for u in book.unknowns if u.what == "which rank the records are for")
    assert reason.startswith(f"no rank in the keys of FlashInfer {library} (only 0.6.18 to 0.7.1 put it there)")


def test_the_real_gpu_starts_of_one_rank():
    """vLLM 0.26.0 on an H200: 42 saved by the cold start, 42 loaded and both ops hit by the warm one."""
    data = (DATA / "h200-0.26.0-autotune_configs.json").read_bytes()
    tree = CacheTree("cache", "/cache", True, files=(CacheFile("a/autotune_configs.json", len(data), 1, "ab"),))
    facts = content_facts(tree, {"a/autotune_configs.json": data})
    record = start("restart-1", [version("0.26.0"), *hits(None, 10), *facts])
    record = replace(record, caches_before=(tree,), caches_after=(tree,))
    book = build_ledger(record, ExpectAutotune(1, 42), warm=True)
    assert [(r.rank, r.found, r.loaded, r.hit[0], r.missed) for r in book.rows] == [("rank 0", 42, 42, GEMM1, ())]
    assert book.findings == ()


def test_a_fact_that_is_kept_twice_counts_once(both):
    record = start("restart-1", both_hit(), both)
    doubled = replace(record, facts=(*record.facts, *both.facts))
    assert build_ledger(doubled, TWO, warm=True) == build_ledger(record, TWO, warm=True)


def test_a_saved_record_gives_the_same_ledger(both):
    """Replay: written as JSON and read back, without the cache."""
    reference = start("reference", [version(), *tuned(R0, 10)], after=both)
    record = start("restart-1", both_hit(), both)
    again = record_from_json(json.loads(json.dumps(record_to_json(record))))
    assert build_ledger(again, TWO, reference=reference) == build_ledger(record, TWO, reference=reference)


def sorted_file(data):
    """In the order in which FlashInfer writes a file."""
    yield "_metadata", data["_metadata"]
    yield from sorted((k, v) for k, v in data.items() if not k.startswith("_"))
    yield "_generation", data["_generation"]
