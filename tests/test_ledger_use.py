"""Warm starts: who used the records, who tuned, what was refused, moved or never looked at; and what can't be known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from helpers_caches import (
    DATA,
    GEMM1,
    GEMM2,
    fact,
    hits,
    kinds,
    log_facts,
    place,
    seal,
    shot,
    start,
    tuned,
    version,
    whole,
    write,
)

from pytest_startup.ledger.book import build as build_ledger
from pytest_startup.ledger.case import world_size
from pytest_startup.ledger.model import KINDS
from pytest_startup.ledger.versions import arches_of, key_shape, tuning_of, version_of
from pytest_startup.observe.caches import snapshot
from pytest_startup.profile.expect import ExpectAutotune
from pytest_startup.ranks import called, parse_rank, workers

R0, R1 = "TP0_EP0", "TP1_EP1"
NAME = "autotune_configs.json"
TWO = ExpectAutotune(ranks=2, records_per_rank=42)
ROOT = "/cache/vllm"


@pytest.fixture
def cache(tmp_path):
    return shot(write(tmp_path, "0.6.18", {NAME: whole("flashinfer-0.6.18-shared")}))


def warm(facts, before, after=None, reference=None, expect=TWO, **kwargs):
    record = start("restart-1", [version(), *facts], before, after, **kwargs)
    return build_ledger(record, expect, reference=reference, warm=True)


def good():
    return [*hits(R0, 10), *hits(R1, 20)]


def test_the_cache_only_start(cache):
    book = warm(good(), cache)
    assert book.findings == ()
    assert book.exercised == {"autotune": True}
    assert {r.written for r in book.rows} == {0}


def test_a_refused_file_is_told_in_flashinfers_words(cache):
    """The real line of FlashInfer 0.6.18 on records of another GPU."""
    lines = json.loads((DATA / "flashinfer-log-lines.json").read_text())["0.6.18-foreign"]
    text = "\n".join(f"(Worker_{r} pid=1) {line}" for r in (R0, R1) for line in lines[:2])
    text = text.replace("/cache/0.6.18-foreign", f"/cache/{place('0.6.18')}")
    book = warm(log_facts(text), cache)
    refused = [f for f in book.findings if f.kind == "refused"]
    assert [f.rank for f in refused] == [R0, R1]
    assert "(gpu: saved=NVIDIA GB10 vs current=NVIDIA H200)" in refused[0].observed[0]
    assert "never-used" not in kinds(book.findings)


def test_records_that_are_saved_on_a_warm_start(tmp_path, cache):
    data = whole("flashinfer-0.6.18-shared")
    gone = next(k for k in data if ", 2, 1, 1, 0," in k)
    del data[gone]
    before = shot(write(tmp_path / "b", "0.6.18", {NAME: seal(data)}))
    saved = fact("autotune.saved", 84, R1, 30, new=1)
    book = warm([*good(), saved], before, cache)
    assert kinds(book.findings) == ["rank-incomplete", "saved-again"]
    assert {r.rank: r.written for r in book.rows} == {R0: 0, R1: 1}
    none_new = fact("autotune.saved", 84, R1, 30, new=0)
    assert warm([*good(), none_new], cache).findings == ()


def test_loaded_after_tuning_is_a_reload_and_no_hit(cache):
    facts = [*tuned(R0, 10), fact("autotune.saved", 42, R0, 12, new=42), fact("autotune.loaded", 42, R0, 13)]
    book = build_ledger(start("reference", facts, after=cache), ExpectAutotune(1, 42))
    assert [(r.loaded, r.saved) for r in book.rows] == [(None, 42)]


def test_progress_bars_that_a_reader_gives_last_stand_where_they_stood(cache):
    facts = [fact("autotune.loaded", 42, R0, 13), *tuned(R0, 10)]
    assert build_ledger(start("reference", facts, after=cache)).rows[0].loaded is None


@pytest.mark.parametrize(
    ("facts", "observed"),
    [
        ([], "no autotune line"),
        (
            [fact("autotune.started", "x", R0), fact("autotune.ended", "x", R0, 2)],
            "the autotuner opened and closed empty",
        ),
    ],
)
def test_records_that_nobody_used(cache, facts, observed):
    found = [f for f in warm(facts, cache).findings if f.kind == "never-used"]
    assert [f.observed for f in found] == [(observed,)]
    assert found[0].summary == "84 records are in the cache, and nothing shows that any was used"


def test_a_start_that_looked_into_another_folder(cache):
    elsewhere = f"{ROOT}/{place('0.6.18').replace('6635', 'ffff')}/{NAME}"
    facts = [fact("autotune.loaded", 0, r, n, path=elsewhere) for n, r in enumerate((R0, R1))]
    found = [f for f in warm(facts, cache).findings if f.kind == "never-used"]
    assert [f.summary for f in found] == [f"84 records in {place('0.6.18')}/{NAME} were never used"]
    here = f"{ROOT}/{place('0.6.18')}/{NAME}"
    assert warm([*good(), fact("autotune.file", here, R0, 5)], cache).findings == ()


def test_a_changed_key_hash_of_the_tuning_cache(cache):
    old, new = (f"{ROOT}/flashinfer_autotune_cache/0.6.18/90a/{h * 64}/{NAME}" for h in "ab")
    reference = start("reference", [version(), *tuned(R0, 10), *tuned(R1, 20),
                                    fact("autotune.saved", 42, R0, 30, path=old, new=42)], after=cache)  # fmt: skip
    facts = [fact("autotune.saved", 42, R0, 30, path=new, new=42), *tuned(R0, 10), *tuned(R1, 20)]
    found = [f for f in warm(facts, cache, reference=reference).findings if f.kind == "key-hash-changed"]
    assert [f.summary for f in found] == ["key hash changed: this start used bbbbbbbbbb…, reference aaaaaaaaaa…"]
    assert found[0].observed == ("no cache_key_factors.json of both starts tells why",)


def test_tuning_at_every_start_is_fine_where_the_profile_says_so():
    facts = [version("0.26.0"), *tuned(R0, 10), *tuned(R1, 20)]
    record = start("restart-1", facts)
    assert build_ledger(record, ExpectAutotune(2, hits="none"), warm=True).findings == ()
    assert kinds(build_ledger(record, ExpectAutotune(2), warm=True).findings) == ["tuned-again"]


def test_what_old_releases_can_not_show_is_said():
    book = build_ledger(start("restart-1", [version("0.24.0"), *tuned(R0, 1), *tuned(R1, 5)]), TWO, warm=True)
    reason = "vLLM 0.24.0 keeps tuning in memory: every start tunes again"
    assert reason in [u.reason for u in book.unknowns]
    book = build_ledger(start("restart-1", [version("0.26.0"), *tuned(R0, 1), *tuned(R1, 5)]), TWO, warm=True)
    assert "vLLM 0.26.0 keeps records of one-rank engines only" in [u.reason for u in book.unknowns]


def test_merged_files_of_a_leader_only_release_are_mentioned(cache):
    record = start("restart-1", [version("0.29.0"), *good()], cache)
    reasons = [u.reason for u in build_ledger(record, TWO, warm=True).unknowns]
    assert "vLLM 0.29.0 saves rank 0's records only: someone merged them" in reasons


def test_bars_without_a_rank_are_red_and_not_blamed_on_one(cache):
    bar = fact("autotune.tuned", {"kind": GEMM2, "done": 21, "total": 21}, None, 9, kind=GEMM2)
    other = [fact("autotune.loaded", 42, r, 10) for r in (R0, R1)]
    hit = [fact("autotune.hit", GEMM1, r, 11) for r in (R0, R1)]
    book = warm([*other, *hit, bar], cache)
    assert [(f.kind, f.rank) for f in book.findings] == [("tuned-again", None)]
    assert "which rank printed 1 tuning lines" in [u.what for u in book.unknowns]


def sglang(tmp_path, facts, release="0.5.22"):
    names = {
        f"rank_tp{r}_pp0_dp0.json": whole("flashinfer-0.6.18", f"autotune_configs_dp0_rank{r}.json") for r in (0, 1)
    }
    shots = shot(write(tmp_path, "0.6.18", names))
    everywhere = [version(release, "SGLang"), *(fact("autotune.started", "started", f"TP{r}", r + 2) for r in (0, 1))]
    record = start(
        "restart-1", [*everywhere, *facts], shots, argv=("python", "-m", "sglang.launch_server", "--tp", "2")
    )
    return build_ledger(record, TWO, warm=True)


def test_sglang_prints_no_hit_so_files_and_bars_decide(tmp_path):
    book = sglang(tmp_path, [])
    assert book.findings == ()
    assert [(r.rank, r.found, r.own) for r in book.rows] == [("TP0", 42, 42), ("TP1", 42, 42)]
    assert "which ops were hit" in [u.what for u in book.unknowns]
    assert kinds(sglang(tmp_path, [fact("autotune.tuned", {"kind": GEMM1, "done": 3, "total": 21})]).findings) == [
        "tuned-again"
    ]


def test_sglang_throws_all_records_away_when_the_files_differ(tmp_path):
    thrown = fact("autotune.discarded", "x", "TP0", 9, "FlashInfer autotune: per-rank caches disagree, discarding them")
    book = sglang(tmp_path, [thrown])
    assert [(f.kind, f.rank) for f in book.findings] == [("refused", None)]
    assert "under expert parallel the files always differ" in book.findings[0].helps[0]


def test_ranks_over_data_and_pipeline_parallel_engines(tmp_path):
    """Keys count over the whole stage: EP rank 3 is TP 1 of DP 1."""
    data = whole("flashinfer-0.6.18-leader")
    made = {"_metadata": data["_metadata"]}
    for key, value in data.items():
        if key.startswith("("):
            for rank in range(4):
                made[key.replace(", 2, 1, 0, 2, 0, 1, 0,", f", 2, 1, 0, 4, {rank}, 1, 0,")] = value
    cache = shot(write(tmp_path, "0.6.18", {NAME: seal(made)}))
    names = [f"DP{d}_TP{t}_EP{2 * d + t}" for d in (0, 1) for t in (0, 1)]
    facts = [f for n, name in enumerate(names) for f in hits(name, 10 * n)]
    book = warm(facts, cache, expect=ExpectAutotune(4, 42))
    assert [(r.rank, r.own) for r in book.rows] == [(n, 42) for n in names]
    assert [f.kind for f in book.findings if f.kind not in ("file-layout",)] == []


def test_each_node_has_a_cache_of_its_own(tmp_path):
    """Two hosts, one rank each: the head's records are no use to the worker's rank."""
    data = whole("flashinfer-0.6.18-shared")
    head = snapshot("cache", write(tmp_path / "head", "0.6.18", {NAME: data}), node="head")
    other = snapshot("cache", write(tmp_path / "worker", "0.6.18", {NAME: data}), node="worker")
    empty = snapshot("cache", tmp_path / "none", node="worker")
    facts = [replace(f, node=n) for r, n in ((R0, "head"), (R1, "worker")) for f in hits(r, 10)]
    for second, found in ((other, 42), (empty, 0)):
        record = start("restart-1", [version(), *facts])
        trees = (head.tree, second.tree)
        record = replace(
            record, facts=(*record.facts, *head.facts, *second.facts), caches_before=trees, caches_after=trees
        )
        book = build_ledger(record, TWO, warm=True)
        assert [(r.rank, r.node, r.found) for r in book.rows] == [(R0, "head", 42), (R1, "worker", found)]
        assert kinds(book.findings) == ([] if found else ["rank-missing"])


def test_a_cold_start_is_only_judged_on_what_lies_there(cache):
    reference = start("reference", [version(), *tuned(R0, 10), *tuned(R1, 20)], after=cache)
    book = build_ledger(reference, TWO)
    assert book.findings == ()
    assert [(r.found, r.written) for r in book.rows] == [(None, 42), (None, 42)]


def test_a_wiped_cache_must_not_hit(cache):
    record = start("restart-1", [version(), *tuned(R0, 10), *tuned(R1, 20)], cache, population="process+wiped:cache")
    reference = start("reference", [version(), *tuned(R0, 10), *tuned(R1, 20)], after=cache)
    assert build_ledger(record, TWO, reference=reference).findings == ()


def test_without_anything_to_see_there_is_no_row():
    book = build_ledger(start("reference"))
    assert (book.rows, book.findings, book.unknowns) == ((), (), ())


def test_findings_come_in_the_order_of_their_weight(tmp_path):
    cache = shot(write(tmp_path, "0.6.18", {NAME: whole("flashinfer-0.6.18-leader")}))
    facts = [*hits(R0, 10), *tuned(R1, 20)]
    found = [f.kind for f in warm(facts, cache).findings]
    assert found == sorted(found, key=KINDS.index)
    assert found[0] == "rank-missing"


@pytest.mark.parametrize(
    ("name", "dp", "pp", "tp", "ep", "rank"),
    [
        ("TP1_EP1", None, None, 1, 1, None),
        ("DP0_PP1_TP2", 0, 1, 2, None, None),
        ("rank=3", None, None, None, None, 3),
        ("rank 3", None, None, None, None, 3),
        ("DP0", 0, None, None, None, None),
        ("head", None, None, None, None, None),
    ],
)
def test_rank_names(name, dp, pp, tp, ep, rank):
    at = parse_rank(name)
    assert (at.dp, at.pp, at.tp, at.ep, at.rank) == (dp, pp, tp, ep, rank)


@pytest.mark.parametrize(
    ("names", "expected", "workers_"),
    [
        ([], None, ["rank 0"]),
        ([], 2, ["rank 0", "rank 1"]),
        (["TP1", "TP0"], None, ["TP0", "TP1"]),
        (["TP0"], 2, ["TP0", "TP1"]),
        (["TP0_EP0"], 3, ["TP0_EP0", "TP1_EP1", "TP2_EP2"]),
        (["DP0", "DP0_TP0", "DP0_TP1"], None, ["DP0_TP0", "DP0_TP1"]),
        (["PP1_TP0", "PP0_TP1", "PP0_TP0", "PP1_TP1"], None, ["PP0_TP0", "PP0_TP1", "PP1_TP0", "PP1_TP1"]),
        (["TP10", "TP9"], None, ["TP9", "TP10"]),
        (["APIServer"], None, ["rank 0"]),
    ],
)
def test_the_workers_behind_names(names, expected, workers_):
    assert [w.name for w in workers([(n, None) for n in names], expected)] == workers_


def test_a_worker_in_a_sentence():
    assert called("TP1") == "rank TP1"
    assert called("rank 1") == "rank 1"


@pytest.mark.parametrize(
    ("argv", "world"),
    [
        ([], None),
        (["serve", "m"], None),
        (["--tensor-parallel-size", "2"], 2),
        (["--tensor-parallel-size=2", "--pipeline-parallel-size=3"], 6),
        (["-tp", "2", "-dp", "2"], 4),
        (["--tp", "4", "--dp-size", "4"], 4),
        (["--tensor-parallel-size", "two"], None),
    ],
)
def test_the_world_that_arguments_ask_for(argv, world):
    assert world_size(argv) == world


@pytest.mark.parametrize(
    ("engine", "release", "saves", "averaged"),
    [
        ("vLLM", "0.21.0", "memory", False),
        ("vLLM", "0.24.0", "memory", False),
        ("vLLM", "0.26.0", "single", False),
        ("vLLM", "0.29.1rc1.dev449+geb8798058", "leader", True),
        ("vLLM", "0.30.0", "per-rank", True),
        ("SGLang", "0.5.10", "memory", False),
        ("SGLang", "0.5.14", "per-rank", False),
        ("SGLang", "0.5.22", "per-rank", True),
    ],
)
def test_what_releases_keep(engine, release, saves, averaged):
    record = start("reference", [version(release, engine)], argv=("python",))
    assert (tuning_of(record).saves, tuning_of(record).averaged) == (saves, averaged)


def test_an_engine_or_version_that_is_not_said_is_not_guessed():
    known = tuning_of(start("reference", argv=("serve",)))
    assert (known.engine, known.saves, known.averaged) == (None, None, None)
    assert version_of("unknown") is None
    assert version_of("0.6.18.post1") == (0, 6, 18)


@pytest.mark.parametrize(
    ("gpu", "arch"),
    [("NVIDIA H200", "90a"), ("NVIDIA GH200 480GB", "90a"), ("NVIDIA GB10", "121a"), ("NVIDIA B300 SXM6", "103a"),
     ("NVIDIA B200", "100a"), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "120a"), ("NVIDIA L40S", "89")],
)  # fmt: skip
def test_gpus_and_their_architectures(gpu, arch):
    assert arch in arches_of(gpu)


def test_an_unknown_gpu_is_not_called_foreign():
    assert arches_of("NVIDIA X999") == ()


def test_the_forms_of_keys_by_release():
    assert [key_shape(version_of(v)) for v in ("0.6.12", "0.6.17", "0.6.18", "0.7.1", "0.7.2", "0.7.4")] == [
        (3, ()),
        (4, (0,)),
        (4, (20,)),
        (4, (20,)),
        (4, (17,)),
        (4, (17,)),
    ]
