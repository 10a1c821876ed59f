"""The artifacts check: key hash, loads per rank, refusals and writes are separate failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers_records import FAILED, NOT_EXERCISED, NOT_OBSERVABLE, PASSED, fact, profile, record, reference, says, tree

from pytest_startup.baseline import Baseline, Population, cache_hashes
from pytest_startup.checks.artifacts import check
from pytest_startup.profile.expect import ExpectArtifacts
from pytest_startup.profile.model import CacheFolder, Change, Profile, Restart
from pytest_startup.record import CacheTree, Fact, StartRecord

KEY, OTHER = "ab" * 32, "cd" * 32
ROOT = "/cache/torch_compile_cache/torch_aot_compile"


def model(rank: int = 0, key: str = KEY) -> str:
    return f"torch_aot_compile/{key}/rank_{rank}_0/model"


def loaded(rank: int | None = None, key: str = KEY) -> Fact:
    path = f"{ROOT}/{key}/rank_{rank or 0}_0/model"
    name = None if rank is None else f"TP{rank}"
    return fact("compile.cache_loaded", f"Directly load AOT compilation from path {path}", name, line=40, path=path)


def saved(rank: int | None = None, key: str = KEY) -> Fact:
    path = f"{ROOT}/{key}/rank_{rank or 0}_0/model"
    name = None if rank is None else f"TP{rank}"
    return fact("compile.cache_written", f"saved AOT compiled function to {path}", name, line=41, path=path)


def refused(key: str = KEY) -> Fact:
    path = f"{ROOT}/{key}/rank_0_0/model"
    text = f"Compiling model again due to a load failure from {path}, reason: no finalize_loading"
    return fact("artifact.missing", text, line=39, path=path, kind="stale-or-corrupt")


def cold(*facts: Fact, after: CacheTree | None = None) -> StartRecord:
    return reference(*facts, caches_before=(tree({}),), caches_after=(after or tree({model(): "code"}),))


def warm(*facts: Fact, before: CacheTree | None = None, after: CacheTree | None = None) -> StartRecord:
    before = before or tree({model(): "code"})
    return record(*facts, caches_before=(before,), caches_after=(after or before,))


def test_a_warm_restart_that_loads_and_writes_nothing() -> None:
    says(check(profile(), cold(saved()), warm(loaded()), None), PASSED)


def test_loads_without_a_watched_cache() -> None:
    says(check(profile(), reference(saved()), record(loaded()), None), PASSED)


def test_a_watched_folder_that_is_not_the_engines() -> None:
    """A misspelt path: nothing was watched there, and a wipe of it wiped nothing."""
    watched = profile(caches=(CacheFolder("compile-cache", Path("/cache"), "compile"),))
    gone = CacheTree("compile-cache", "/cache", exists=False)
    for start in (cold(saved(), after=gone), warm(loaded(), before=gone, after=gone)):
        before = cold(saved(), after=gone) if start.name != "reference" else None
        says(
            check(watched, before, start, None),
            FAILED,
            "cache compile-cache is not where the engine keeps its artifacts: there is no /cache",
            "compare caches.compile-cache.path with the folder in the log",
        )


def test_hash_changed() -> None:
    both = tree({model(): "code", model(key=OTHER): "new code"})
    verdict = check(profile(), cold(saved()), warm(saved(key=OTHER), after=both), None)
    says(
        verdict,
        FAILED,
        f"hash changed: this start used {OTHER[:10]}…, reference {KEY[:10]}…",
        "is never hit again",
        "written during a warm start",
        "from reference",
    )
    assert len(verdict.findings) == 2


def test_hash_changed_by_a_factor_that_the_cache_names() -> None:
    def factors(value: str) -> Fact:
        path = f"{KEY[:10]}/rank_0_0/backbone/cache_key_factors.json"
        return fact("compile.key_factors", {"env": {"POD": value}}, source="cache", path=path, cache="compile-cache")

    verdict = check(profile(), cold(saved(), factors("a")), warm(saved(key=OTHER), factors("b")), None)
    says(verdict, FAILED, "hash changed", 'env.POD: "a" → "b"')


def test_another_hash_is_meant_where_arguments_change() -> None:
    changed = profile(restarts=(Restart("restart-1", "process", change=Change(args=("--max-num-seqs", "16"))),))
    both = tree({model(): "code", model(key=OTHER): "new code"})
    says(check(changed, cold(saved()), warm(saved(key=OTHER), after=both), None), PASSED)


def test_refused_and_written_again_are_two_failures() -> None:
    rewritten = tree({model(): "code again"})
    verdict = check(profile(), cold(saved()), warm(refused(), saved(), after=rewritten), None)
    says(
        verdict,
        FAILED,
        "missing, corrupt or refused artifact: an artifact of the engine was missing or refused",
        "no finalize_loading",
        "written during a warm start: the engine compiled again on a warm start",
    )
    assert len(verdict.findings) == 2


def test_refused_artifacts_on_the_reference_start_itself() -> None:
    says(check(profile(), None, cold(refused(), saved()), None), FAILED, "refused artifact")


def test_a_deleted_artifact_is_silent_but_for_the_missing_line() -> None:
    pair = tree({model(0): "code 0", model(1): "code 1"})
    left = tree({model(0): "code 0"})
    again = tree({model(0): "code 0", model(1): "code 1 again"})
    before = reference(saved(0), loaded(1), caches_before=(tree({}),), caches_after=(pair,))
    verdict = check(
        profile(), before, warm(loaded(0), fact("weights.memory", 1, "TP1"), before=left, after=again), None
    )
    says(
        verdict,
        FAILED,
        "rank TP1 lacks model",
        "TP1 loaded no compiled artifact",
        "rank_1_0",
        "written during a warm start",
    )


def test_one_rank_without_its_load_line_where_no_cache_is_watched() -> None:
    before = reference(loaded(0), loaded(1))
    verdict = check(profile(), before, record(loaded(0), fact("weights.memory", 1, "TP1")), None)
    says(verdict, FAILED, "rank TP1 loaded no compiled artifact", "TP0: loaded", "TP1: no load line")


def test_fewer_ranks_load_than_the_profile_expects() -> None:
    pair = profile(expect={"artifacts": ExpectArtifacts(ranks=2)})
    says(check(pair, None, record(loaded(0)), None), PASSED)  # a reference start may be cold
    says(check(pair, reference(saved(0)), record(loaded(0)), None), FAILED, "from expect.artifacts.ranks")


def test_an_eager_restart_loads_nothing() -> None:
    verdict = check(profile(), reference(saved()), record(), None)
    says(verdict, FAILED, "nothing says that a compiled artifact was loaded", "an eager start looks like this")


def test_files_that_nothing_shows_to_be_used() -> None:
    idle = tree({"x/y.so": "code"})
    verdict = check(profile(), cold(after=idle), warm(before=idle), None)
    says(verdict, NOT_EXERCISED, "compile-cache holds 1 files, and nothing shows that any was used")


def test_compiled_without_saving() -> None:
    took = fact("compile.range", 12.69, line=35, text="Compiling a graph for compile range (1, 8192) takes 12.69 s")
    verdict = check(profile(), cold(saved()), warm(loaded(), took), None)
    says(verdict, FAILED, "written during a warm start: a graph was compiled", "takes 12.69 s")


def test_an_artifact_with_nothing_inside() -> None:
    hollow = fact("compile.artifacts", {"artifacts": 0, "submodules": 0}, "TP1")
    verdict = check(profile(), cold(saved()), warm(loaded(), hollow), None)
    says(verdict, FAILED, "the artifact on rank TP1 holds nothing: the model runs eagerly")


def test_a_file_that_is_only_touched_is_not_written() -> None:
    again = tree({model(): "code"}, mtime_ns=2)
    says(check(profile(), cold(saved()), warm(loaded(), after=again), None), PASSED)


def test_locks_and_logs_are_not_artifacts() -> None:
    more = tree({model(): "code", "a/sampling.lock": "", "a/flashinfer_jit.log": "line"})
    says(check(profile(), cold(saved()), warm(loaded(), after=more), None), PASSED)


def test_wiped_compile_caches_are_meant_to_be_written() -> None:
    wiping = profile(restarts=(Restart("restart-1", "process", wipe=("compile-cache",)),))
    start = record(saved(), caches_before=(tree({}),), caches_after=(tree({model(): "other"}),))
    says(check(wiping, cold(saved()), start, None), PASSED)


def test_a_wiped_cache_that_the_profile_gives_no_kind() -> None:
    """It is what the reference start kept in it; wiping another one makes no start cold."""
    unnamed = (
        CacheFolder("compile-cache", Path("/cache/compile-cache"), "other"),
        CacheFolder("hub", Path("/cache/hub"), "other"),
    )

    def wiping(name: str) -> Profile:
        return profile(caches=unnamed, restarts=(Restart("restart-1", "process", wipe=(name,)),))

    start = record(saved(), caches_before=(tree({}),), caches_after=(tree({model(): "other"}),))
    says(check(wiping("compile-cache"), cold(saved()), start, None), PASSED)
    says(check(wiping("hub"), cold(saved()), start, None), FAILED, "written during a warm start")


def test_recompiling_and_writing_can_be_allowed() -> None:
    allowed = profile(expect={"artifacts": ExpectArtifacts(recompiled="any", writes="any", missing="any")})
    start = warm(refused(), saved(), after=tree({model(): "again"}))
    verdict = check(allowed, cold(saved()), start, None)
    assert "written during a warm start" not in str(verdict.findings)


def test_a_default_instead_of_a_tuned_config() -> None:
    default = fact("artifact.missing", "Using default MoE config", text="Using default MoE config", kind="tuned-config")
    says(check(profile(), cold(saved(), default), warm(loaded(), default), None), PASSED)
    says(check(profile(), cold(saved()), warm(loaded(), default), None), FAILED, "a default stands in for a tuned")
    strict = replace(profile(), origin={"expect.artifacts.missing": 9})
    says(check(strict, cold(saved(), default), warm(loaded(), default), None), FAILED, "tune this shape for this GPU")


def test_nothing_watched_and_no_line() -> None:
    says(check(profile(), reference(), record(), None), NOT_OBSERVABLE, "a line that a compiled artifact was loaded")


def test_a_night_says_what_of_the_accepted_cache_changed() -> None:
    accepted = warm(before=tree({model(): "old", "gone.so": "x"}))
    baseline = Baseline("p", {}, {"process": Population(caches=cache_hashes(profile(), accepted))})
    tonight = warm(loaded(), before=tree({model(): "code", "new.so": "y"}))
    verdict = check(profile(), None, tonight, baseline)
    says(verdict, PASSED)
    assert verdict.numbers == {f"artifacts {w} since the baseline": 1 for w in ("new", "gone", "changed")}
    assert any(f"changed since the baseline: compile-cache/{model()}" in e.text for e in verdict.evidence)


@pytest.mark.parametrize(("cache", "folder", "seen"), [("compile-cache", True, False), ("tuned", True, True)])
def test_a_folder_of_the_cache_that_nobody_looked_into(cache: str, folder: bool, seen: bool) -> None:
    """Behind a link to elsewhere a warm start may write what it likes."""
    told = fact("cache.unreadable", "torch_compile_cache", source="cache", cache=cache, reason="a link", folder=folder)
    first, restart = cold(saved(), told), warm(loaded(), told)
    verdict = check(profile(), first, restart, None)
    says(verdict, PASSED if seen else NOT_OBSERVABLE, *([] if seen else ["nothing shows what was written there"]))
    allowed = profile(expect={"artifacts": ExpectArtifacts(writes="any")})
    says(check(allowed, first, restart, None), PASSED)
    says(check(profile(), None, first, None), PASSED)  # a cold start is expected to write
