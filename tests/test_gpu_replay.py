"""Real starts on GPUs, judged on every commit: clean ones stay green, and each fault turns the right checks red."""

from __future__ import annotations

import pytest
from helpers_gpu_runs import RUNS, rates, red, verdicts
from helpers_h200 import DATA, profile_of, start
from helpers_records import text_of

from pytest_startup.checks.base import Outcome
from pytest_startup.checks.registry import run as judge
from pytest_startup.profile.expect import Expect, ExpectTiers
from pytest_startup.workload.statistics import Decision, compare

#: Run → start → check → words of its message. Starts that are not named are green; every check that is not named, too.
FAULTS: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "warm": {},
    "moe": {
        "restart-2": {"autotune": ("the engine tuned again", "42 own records")},
        "restart-3": {
            "backend": ("the moe backend is TRITON, FLASHINFER_CUTLASS is expected",),
            "autotune": ("the cache is empty",),
            "artifacts": ("a default stands in for a tuned kernel config",),
            "quality": ("answered differently",),
        },
        "restart-4": {"ready": ("phase warm-up", "JSONDecodeError")},
    },
    "aot": {
        "restart-1": {"artifacts": ("files of cache compile-cache are not as reference left them", "gone:")},
        "restart-2": {"artifacts": ("missing or refused", "written during a warm start")},
    },
    "artifact": {"restart-1": {"ready": ("phase compile", "a cached artifact is damaged or incomplete")}},
    "offload-idle": {"reference": {"tiers": ("the external cache tier is configured and never gave anything",)}},
    "kill-load": {"reference": {"ready": ("phase weights", "VLLM::EngineCore")}},
    "kill-capture": {"reference": {"ready": ("phase graph-capture", "VLLM::EngineCore")}},
    "kill-serving": {"reference": {"ready": ("phase serving",)}},
    "hog-load": {"reference": {"ready": ("the device memory that was asked for is not free", "0.09 of 139.8 GiB")}},
    "hog-kv": {"restart-1": {"kv": ("726,880 tokens less than the reference start (62.39 %)",)}},
    "hog-capture": {
        "reference": {
            "ready": (
                "phase graph-capture",
                "out of device memory",
                "other processes hold about 133.7 GiB",
                "ending what else holds",
            )
        }
    },
    "offload-used": {},
    "graphs-served": {},
    "noise": {},
    "slower": {
        "restart-1": {
            "throughput": ("1552.5 tokens/s at concurrency 20", "below the reference start"),
            "graphs": ("no graph for batch sizes",),
        },
        "restart-2": {"graphs": ("0 of 5 FULL",)},
        "restart-3": {"throughput": ("cannot tell whether concurrency 20 got slower",)},
    },
    # random weights, a sum over two GPUs: the greedy text is not the same again
    "node-pair": {"restart-1": {"quality": ("answered differently",)}},
    "port-later": {
        "reference": {
            "ready": ("a port is already in use", "Errno 98"),
            "cleanup": ("left behind after the stop: port",),
        }
    },
    "pair-kill": {"reference": {"ready": ("on rank TP1", "VLLM::Worker_TP1 (pid", "died before the engine was ready")}},
    "pair-kill-capture": {
        "reference": {"ready": ("phase graph-capture on rank TP1", "VLLM::Worker_TP1 (pid", "was killed by SIGKILL")}
    },
    "dp-offload": {},
    # two data-parallel engines with experts: both tune at every start; random weights
    "dp-graphs": {
        "restart-1": {
            "autotune": ("rank DP0 tuned again", "no rank named"),
            "quality": ("answered differently",),
        },
        "restart-2": {"ready": ("VLLM::EngineCore_DP1 (pid", "was killed by SIGKILL while the engine served")},
    },
    # requests stayed open behind the killed one until the gate ended them
    "kill-serving-open": {
        "reference": {"ready": ("VLLM::EngineCore (pid", "killed by SIGKILL while the engine served")}
    },
    "pair-moe-open": {
        "restart-1": {"autotune": ("ranks TP0_EP0 and TP1_EP1 tuned again",), "quality": ("answered differently",)},
        "restart-2": {"ready": ("on rank TP1_EP1", "VLLM::Worker_TP1_EP1 (pid", "killed by SIGKILL while the engine")},
    },
    # two ranks with expert parallel: this release keeps no records and does not repeat its own greedy text
    "pair-moe": {
        "restart-1": {
            "autotune": ("ranks TP0_EP0 and TP1_EP1 tuned again; every rank must use its own 42 records",),
            "quality": ("answered differently",),
        },
        "restart-2": {"ready": ("phase serving", "VllmWorker-1 died unexpectedly")},
    },
}


def test_every_saved_run_has_its_expectation() -> None:
    assert {p.name for p in RUNS.iterdir()} == {f"{name}.tar.xz" for name in FAULTS}


@pytest.mark.parametrize("run", FAULTS)
def test_run_of_the_gate(run: str) -> None:
    found = red(run)
    seen = {start: set(checks) for start, checks in found.items() if checks}
    assert seen == {start: set(checks) for start, checks in FAULTS[run].items()}
    for name, checks in FAULTS[run].items():
        for check, words in checks.items():
            text = text_of(found[name][check])
            assert [w for w in words if w not in text] == [], text


def test_green_is_judged_and_not_empty() -> None:
    for name, checks in verdicts("warm").items():
        passed = {check for check, v in checks.items() if v.outcome is Outcome.PASSED}
        assert {"identity", "ready", "backend", "artifacts", "graphs", "kv", "quality", "cleanup"} <= passed, name


def test_what_ten_identical_restarts_let_the_rule_tell() -> None:
    """Each pair of them, as it was and with the later one made slower: what is a fifth slower is never called good."""
    starts = [rates("noise", f"restart-{n}") for n in range(1, 11)]

    def decisions(tolerance: float, drop: float) -> set[Decision]:
        pairs = [(a, [r * (1 - drop) for r in b]) for a in starts for b in starts if a is not b]
        return {compare(a, b, tolerance).decision for a, b in pairs}

    assert decisions(0.05, 0.2) == {Decision.SLOWER, Decision.CANNOT_TELL}
    assert decisions(0.05, 0.4) == {Decision.SLOWER}
    assert decisions(0.25, 0.0) == {Decision.SAME, Decision.FASTER, Decision.CANNOT_TELL}
    for number, one in enumerate(starts):
        others = [rate for n, other in enumerate(starts) if n != number for rate in other]
        assert compare(others, [rate * 0.8 for rate in one], 0.05).decision is Decision.SLOWER


#: Recorded start → (its reference, the phase and the kind of its failure, words of the message of ready).
FAILED = {
    "artifact-deleted": ("dense-5-cold-par", "compile", "corrupted-cache", ("FileNotFoundError",)),
    "artifact-garbled": ("dense-5-cold-par", "compile", "corrupted-cache", ("checksum does not match",)),
    "cache-readonly": ("dense-5-cold-par", "weights", "not-writable", ("Read-only file system", "a writable volume")),
    "engine-killed": ("dense-5-cold-par", "serving", "process-died", ("engine core exited unexpectedly",)),
    "fail-backend-mla": ("dense-5-cold-par", "weights", "unsupported-backend", ("FLASHMLA",)),
    "fail-free-memory": ("dense-5-cold-par", "device-init", "memory-in-use", ("128.62 GiB wanted, 19.49 of 139.8",)),
    "fail-kv-too-small": ("dense-5-cold-par", "kv-reservation", "kv-too-small", ("the longest that fits is 1824",)),
    "fail-oom-graph": ("dense-5-cold-par", "graph-capture", "out-of-device-memory", ("other processes hold",)),
    "fail-port-in-use": ("dense-5-cold-par", "launch", "port-taken", ("Errno 98",)),
    "moe-tp2ep-5-worker-killed": ("moe-tp2ep-1-cold", "serving", "process-died", ("VllmWorker-1 died unexpectedly",)),
    "moefi-4-damaged": ("moefi-1-cold", "warm-up", "corrupted-cache", ("JSONDecodeError",)),
}


@pytest.mark.parametrize("folder", FAILED)
def test_a_failed_start_is_told_with_phase_and_cause(folder: str) -> None:
    reference, phase, kind, words = FAILED[folder]
    one = start(folder)
    assert one.failure is not None
    assert (one.failure.phase, one.failure.kind) == (phase, kind)
    model = "moe" if folder.startswith("moe") else "dense"
    verdict = judge("ready", profile_of(model), start(reference, "reference"), one, None)
    assert verdict.outcome is Outcome.FAILED
    assert [w for w in words if w not in text_of(verdict)] == [], text_of(verdict)


SHOWN = ("identity", "ready", "phases", "backend", "artifacts", "graphs", "kv", "memory")


@pytest.mark.parametrize(
    ("folder", "reference", "expected"),
    [
        ("dense-3-warm", "dense-2-warm", set()),
        ("moe-triton-2-warm", "moe-triton-1-cold", set()),
        ("moefi-2-warm", "moefi-1-cold", set()),
        ("aot-deleted", "dense-5-cold-par", {"artifacts"}),
        ("seqs-16", "dense-5-cold-par", {"identity", "artifacts", "graphs"}),
    ],
)
def test_a_recorded_restart(folder: str, reference: str, expected: set[str]) -> None:
    profile = profile_of("moe" if folder.startswith("moe") else "dense")
    before, one = start(reference, "reference"), start(folder)
    found = {c: judge(c, profile, before, one, None) for c in SHOWN}
    wrong = {c: text_of(v) for c, v in found.items() if v.outcome is not Outcome.PASSED}
    assert set(wrong) == expected, wrong


def test_an_offload_tier_that_was_used() -> None:
    """Three turns of eight conversations, twice what the KV cache holds: 15,104 tokens came back from the host."""
    one = start("kvoffload-on")
    profile = profile_of("dense", Expect(tiers=ExpectTiers(external=True)))
    verdict = judge("tiers", profile, None, one, None)
    assert verdict.outcome is Outcome.PASSED, text_of(verdict)
    unused = judge("tiers", profile, None, start("dense-3-warm"), None)
    assert unused.outcome in (Outcome.NOT_EXERCISED, Outcome.NOT_OBSERVABLE), text_of(unused)


def test_the_data_stay_small() -> None:
    assert sum(p.stat().st_size for p in DATA.rglob("*") if p.is_file()) <= 5_000_000
