"""The identity check: versions as strings, arguments, image, files, host and GPUs, and a process that is a new one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers_records import FAILED, NOT_OBSERVABLE, PASSED, Outcome, answer, fact, profile, record, reference, says

from pytest_startup.baseline import Baseline, Population
from pytest_startup.checks.identity import check
from pytest_startup.checks.identity_pinned import same_version
from pytest_startup.profile.model import Change, ContainerFile, ContainerLaunch, Engine, Host, Launch, Profile, Restart
from pytest_startup.profile.nodes import Node
from pytest_startup.record import JSON, Fact

ID, OTHER_ID = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def version(text: str, source: str = "log") -> Fact:
    return fact("engine.version", text, source=source)


@pytest.mark.parametrize(
    ("pinned", "said", "same"),
    [
        ("0.31.0", "0.31.0", True),
        ("0.31.0", "v0.31.0", True),
        ("0.31.0", "0.31.0+cpu", True),
        ("0.31.0+cpu", "0.31.0", False),
        ("0.31.0+cpu", "0.31.0+cu130", False),
        ("0.31.0", "0.31.0rc1", False),
        ("0.31.0", "0.31.0.dev3+g1234567", False),
        ("0.29.1rc1.dev449+geb8798058", "0.29.1rc1.dev449+geb8798058", True),
        ("0.29.1rc1.dev449+geb8798058", "0.29.1rc1.dev449+geb8798059", False),
        ("0.29.1rc1.dev449", "0.29.1rc1.dev449+geb8798058", False),
        ("0.31", "0.31.0", False),
    ],
)
def test_versions(pinned: str, said: str, same: bool) -> None:
    assert same_version(pinned, said) is same


PINNED = Engine("vllm", "org/model", version="0.31.0")
TWO = (Node("head", "192.0.2.1", api=True), Node("worker", "192.0.2.2"))

CASES: dict[str, tuple[Profile, tuple[Fact, ...], Outcome, tuple[str, ...]]] = {
    "the pinned version, said twice": (
        profile(engine=PINNED),
        (version("v0.31.0"), version("0.31.0+cpu", "endpoint")),
        PASSED,
        (),
    ),
    "another version": (
        profile(engine=PINNED),
        (version("0.32.0"),),
        FAILED,
        ("engine 0.32.0 runs, 0.31.0 is pinned", "from engine.version"),
    ),
    "log and endpoint differ": (
        profile(),
        (version("0.31.0"), version("0.32.0", "endpoint")),
        FAILED,
        ("the engine gives two versions: 0.31.0 and 0.32.0", "0.32.0 (endpoint)"),
    ),
    "version pinned and never said": (
        profile(engine=PINNED),
        (fact("engine.model", "org/model"),),
        NOT_OBSERVABLE,
        ("the engine never said its version, 0.31.0 is pinned", "engine.model org/model"),
    ),
    "another model": (
        profile(),
        (fact("engine.model", "org/other"),),
        FAILED,
        ("the engine serves org/other, org/model is pinned",),
    ),
    "the served name is the model too": (
        profile(engine=Engine("vllm", "/models/x/", served_name="x")),
        (fact("engine.model", "/models/x"), fact("engine.model", "x", source="endpoint")),
        PASSED,
        (),
    ),
    "another revision": (
        profile(engine=Engine("vllm", "org/model", revision="abc")),
        (fact("engine.revision", "def"),),
        FAILED,
        ("model revision def is in force, abc is pinned",),
    ),
    "a revision that nothing shows": (
        profile(engine=Engine("vllm", "org/model", revision="abc")),
        (version("0.31.0"), fact("engine.revision", "None")),
        NOT_OBSERVABLE,
        ("nothing shows the model's revision, abc is pinned",),
    ),
    "a pinned argument was dropped": (
        profile(engine=Engine("vllm", "org/model", args=("--tensor-parallel-size", "2"))),
        (fact("process.argv", ["vllm", "serve", "org/model", "--tensor-parallel-size", "1"], source="process"),),
        FAILED,
        ("the pinned argument 2 is not in the command line of the running engine", "a wrapper script"),
    ),
    "pinned arguments in order": (
        profile(engine=Engine("vllm", "org/model", args=("--enforce-eager",))),
        (fact("process.argv", ["vllm", "serve", "--port", "1", "--enforce-eager"], source="process"),),
        PASSED,
        (),
    ),
    "page size": (
        profile(host=Host(page_size=4096)),
        (fact("host.page_size", 65536, source="host"),),
        FAILED,
        ("host.page_size is 65536, 4096 is pinned", "from host.page_size"),
    ),
    "driver by pattern": (
        profile(host=Host(driver="580.*", gpu="H200")),
        (fact("gpu.driver", "580.65", source="gpu"), fact("gpu.name", "NVIDIA H200", source="gpu")),
        PASSED,
        (),
    ),
    "driver pinned and unseen": (
        profile(host=Host(driver="580.*")),
        (version("0.31.0"),),
        NOT_OBSERVABLE,
        ("gpu.driver is pinned to 580.* and was not seen",),
    ),
    "number of GPUs": (
        profile(host=Host(gpu_count=2)),
        (fact("gpu.uuid", "GPU-1", source="gpu"),),
        FAILED,
        ("1 GPUs are in use, 2 are pinned",),
    ),
    "number of GPUs, and none seen": (
        profile(host=Host(gpu_count=2)),
        (version("0.31.0"),),
        NOT_OBSERVABLE,
        ("2 GPUs are pinned and none was seen", "from host.gpu_count"),
    ),
    "one GPU of each of two nodes": (
        profile(host=Host(gpu_count=1), nodes=TWO),
        (fact("gpu.uuid", "GPU-1", source="gpu", node="head"), fact("gpu.uuid", "GPU-2", source="gpu", node="worker")),
        PASSED,
        (),
    ),
    "a node that has lost a GPU": (
        profile(host=Host(gpu_count=2), nodes=TWO),
        (
            fact("gpu.uuid", "GPU-1", source="gpu", node="head"),
            fact("gpu.uuid", "GPU-2", source="gpu", node="head"),
            fact("gpu.uuid", "GPU-3", source="gpu", node="worker"),
        ),
        FAILED,
        ("1 GPUs of node worker are in use, 2 are pinned",),
    ),
    "a node on which no GPU was seen": (
        profile(host=Host(gpu_count=1), nodes=TWO),
        (
            fact("gpu.uuid", "GPU-1", source="gpu", node="head"),
            fact("gpu.memory_unknown", "no NVML: no driver", source="gpu", text="no NVML: no driver", node="worker"),
        ),
        NOT_OBSERVABLE,
        ("1 GPUs of node worker are pinned and none was seen", "no NVML: no driver"),
    ),
    "the GPU that a node uses, of a host with four": (
        profile(host=Host(gpu_count=4), nodes=(replace(TWO[0], gpus=("0",)),)),
        (fact("gpu.uuid", "GPU-1", source="gpu", node="head"),),
        PASSED,
        (),
    ),
    "a GPU's name in other letters, as the preflight takes it": (
        profile(host=Host(gpu="gh200")),
        (fact("gpu.name", "NVIDIA GH200 480GB", source="gpu"),),
        PASSED,
        (),
    ),
    "nothing pinned and nothing seen": (profile(), (), NOT_OBSERVABLE, ("version, model, arguments",)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_start(case: tuple[Profile, tuple[Fact, ...], Outcome, tuple[str, ...]]) -> None:
    pinned, facts, outcome, words = case
    says(check(pinned, None, record(*facts), None), outcome, *words)


def in_container(*files: ContainerFile) -> Profile:
    return profile(launch=Launch(container=ContainerLaunch(ID, files=files)))


def test_image() -> None:
    says(check(in_container(), None, record(fact("container.image", ID, source="container")), None), PASSED)
    by_digest = fact("container.image", OTHER_ID, source="container", digests=[f"vllm/vllm-openai@{ID}"])
    says(check(in_container(), None, record(by_digest), None), PASSED)
    other = record(fact("container.image", OTHER_ID, source="container"))
    says(check(in_container(), None, other, None), FAILED, f"the container runs image {OTHER_ID}", "a tag was moved")
    says(check(in_container(), None, record(version("1")), None), NOT_OBSERVABLE, "nothing shows the image")


def test_files() -> None:
    patch = in_container(ContainerFile(Path("/p/a.py"), "/usr/a.py", "ab" * 32))
    image = fact("container.image", ID, source="container")
    good = fact("file.sha256", "ab" * 32, source="container", path="/usr/a.py")
    bad = fact("file.sha256", "cd" * 32, source="container", path="/usr/a.py", node="worker")
    says(check(patch, None, record(image, good), None), PASSED)
    says(check(patch, None, record(image, bad), None), FAILED, "/usr/a.py is not the pinned file", "worker: sha256 cd")
    says(check(patch, None, record(image), None), NOT_OBSERVABLE, "nothing shows the hash of /usr/a.py")


@pytest.mark.parametrize(
    "name", ["gpu.driver", "gpu.uuid", "host.page_size", "container.image", "config.max_model_len", "engine.revision"]
)
def test_changed_since_the_reference(name: str) -> None:
    verdict = check(profile(), reference(fact(name, "a")), record(fact(name, "b")), None)
    says(verdict, FAILED, f"{name} changed since the reference start", "from reference")
    says(check(profile(), reference(fact(name, "a")), record(fact(name, "a")), None), PASSED)


@pytest.mark.parametrize("name", ["gpu.uuid", "gpu.driver", "container.image"])
def test_what_the_reference_showed_and_this_start_does_not(name: str) -> None:
    verdict = check(profile(), reference(fact(name, "a")), record(version("1")), None)
    says(verdict, NOT_OBSERVABLE, f"{name} was seen on the reference start and is not on this one", "from reference")


@pytest.mark.parametrize("pinned", [None, "0.31.0"])
def test_another_version_than_on_the_reference(pinned: str | None) -> None:
    """Nothing pinned, or a pin that allows both builds: it is still not what was validated."""
    wanted = profile(engine=Engine("vllm", "org/model", version=pinned))
    first = reference(version("v0.31.0"), version("0.31.0+cu130", "endpoint"))
    verdict = check(wanted, first, record(version("0.31.0"), version("0.31.0+cpu", "endpoint")), None)
    says(verdict, FAILED, "engine 0.31.0+cpu runs, the reference start was 0.31.0+cu130", "from reference")
    silent = check(wanted, first, record(version("0.31.0")), None)
    says(silent, NOT_OBSERVABLE, "the version that the endpoint gave on the reference start is not there on this one")


def shown(*argv: str, where: str = "/proc/7/cmdline", node: str | None = None) -> Fact:
    told = fact("process.argv", ["vllm", "serve", *argv], source="process", node=node)
    return replace(told, evidence=replace(told.evidence, where=where))


OF_SCRIPT = ("--port", "1", "--dtype=half", "--dist-init-addr", "10.0.0.1:501", "--out", "/tmp/tmp.Ab1/x", "org/model")


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (
            ("--port", "2", "--dtype=half", "--dist-init-addr", "10.0.0.1:777", "--out", "/tmp/tmp.Zq9/x", "org/model"),
            "",
        ),
        ((*OF_SCRIPT, "--enforce-eager"), "--enforce-eager"),
        (OF_SCRIPT[:-1], "org/model"),
        (tuple(w.replace("half", "auto") for w in OF_SCRIPT), "--dtype=auto, --dtype=half"),
        (tuple(w.replace("10.0.0.1", "10.0.0.2") for w in OF_SCRIPT), "10.0.0.1:PORT, 10.0.0.2:PORT"),
        ((*OF_SCRIPT, "--dtype=half"), "--dtype=half"),
        ((OF_SCRIPT[2], *OF_SCRIPT[:2], *OF_SCRIPT[3:]), "in another order"),
    ],
)
@pytest.mark.parametrize("node", [None, "worker"])
def test_arguments_that_a_script_changed_between_the_starts(now: tuple[str, ...], told: str, node: str | None) -> None:
    verdict = check(profile(), reference(shown(*OF_SCRIPT, node=node)), record(shown(*now, node=node)), None)
    if told:
        says(verdict, FAILED, f"other options than on the reference start: {told}", "a wrapper script")
    else:
        says(verdict, PASSED)


def test_arguments_as_launched_are_compared_by_their_options() -> None:
    """An engine that has ended shows none; a launch command is spelled otherwise than what the kernel shows of it."""
    launched = shown("serve", "--dtype", "half", where="argv")
    says(check(profile(), reference(shown("--dtype", "half")), record(launched), None), PASSED)
    more = shown("--dtype", "half", "--enforce-eager", where="argv")
    says(check(profile(), reference(shown("--dtype", "half")), record(more), None), FAILED, "--enforce-eager")


def test_arguments_that_only_the_reference_showed() -> None:
    first = reference(shown("--a", node="head"), shown("--b", node="worker"))
    says(check(profile(nodes=TWO), first, record(shown("--a", node="head")), None), NOT_OBSERVABLE, "are not on this")


def test_a_mounted_file_without_a_pin_that_changed_between_the_starts() -> None:
    def mounted(digest: str, path: str = "/usr/a.py") -> Fact:
        return fact("file.sha256", digest, source="container", path=path)

    first = reference(mounted("aa"), mounted("bb", "/usr/b.py"))
    says(check(profile(), first, record(mounted("aa"), mounted("bb", "/usr/b.py")), None), PASSED)
    verdict = check(profile(), first, record(mounted("aa"), mounted("aa", "/usr/b.py")), None)
    says(verdict, FAILED, "/usr/b.py changed since the reference start", "from reference")
    says(check(profile(), first, record(mounted("aa")), None), NOT_OBSERVABLE, "the hash of /usr/b.py was seen on the")


def test_another_fingerprint_than_on_the_reference() -> None:
    first = reference(version("1"), completions=(answer(fingerprint="vllm-1-abc"), answer()))
    other = record(version("1"), completions=(answer(fingerprint="vllm-1-nohash"),))
    says(check(profile(), first, other, None), FAILED, "own fingerprint changed", "vllm-1-nohash", "from reference")
    silent = check(profile(), first, replace(other, completions=(answer(),)), None)
    says(silent, NOT_OBSERVABLE, "those of this one none", "from reference")
    changed = profile(restarts=(Restart("restart-1", "process", change=Change(args=("--enforce-eager",))),))
    says(check(changed, first, other, None), PASSED)


def test_other_arguments_than_the_reference() -> None:
    first = reference(version("1"), argv=("vllm", "--port", "1", "--a"))
    says(check(profile(), first, record(version("1"), argv=("vllm", "--port", "2", "--a")), None), PASSED)
    other = record(version("1"), argv=("vllm", "--port=3", "--a", "--enforce-eager"))
    says(check(profile(), first, other, None), FAILED, "launched with other arguments", "--enforce-eager")
    changed = profile(restarts=(Restart("restart-1", "process", change=Change(args=("--enforce-eager",))),))
    says(check(changed, first, other, None), PASSED)


STARTS = (("reference", 10.5), ("restart-1", 99.0))


def test_a_process_that_was_not_restarted() -> None:
    same, new = (fact("process.pid", pid, source="process") for pid in (4711, 4712))
    verdict = check(profile(), reference(same), record(same), None)
    again = (record(same, version("1"), fact("process.start_time", t, source="process"), name=n) for n, t in STARTS)
    says(check(profile(), *again, None), PASSED)  # a pid that was given out again
    says(verdict, FAILED, "process 4711 is still the one of the reference start: nothing was restarted")
    says(check(profile(), reference(same), record(new, version("1")), None), PASSED)


def test_a_baseline_of_another_engine_is_refused_with_the_reason() -> None:
    pins: dict[str, JSON] = {"engine.kind": "vllm", "engine.model": "org/model", "engine.args": []}
    accepted = Baseline("p", {**pins, "engine.version": "0.30.0", "gpu.name": ["NVIDIA H200"]})
    verdict = check(profile(), None, record(version("0.31.0")), accepted)
    says(
        verdict,
        FAILED,
        "the baseline was accepted for something else",
        "engine.version: accepted for 0.30.0, this start has 0.31.0",
        "gpu.name: accepted for NVIDIA H200, not seen on this start",
        "from baseline",
    )
    same = record(version("0.30.0"), fact("gpu.name", "NVIDIA H200", source="gpu"))
    says(check(profile(), None, same, accepted), PASSED)


def test_revision_among_the_arguments_counts() -> None:
    pinned = profile(engine=Engine("vllm", "org/model", revision="abc"))
    start = record(version("1"))
    says(check(pinned, None, replace(start, argv=("vllm", "--revision", "abc")), None), PASSED)
    says(check(pinned, None, replace(start, argv=("vllm", "--revision=xyz")), None), FAILED, "revision xyz is in force")


def test_a_rank_that_says_nothing_on_the_restart() -> None:
    def lines(*ranks: str) -> list[Fact]:
        return [version("0.31.0"), *(fact("weights.memory", 3, rank) for rank in ranks)]

    first = reference(*lines("TP0_EP0", "TP1_EP1"))
    verdict = check(profile(), first, record(*lines("TP0_EP0")), None)
    says(verdict, NOT_OBSERVABLE, "no line of this start is of rank TP1_EP1", "from reference")
    says(check(profile(), first, record(*lines("TP0", "TP1")), None), PASSED)
    pins: dict[str, JSON] = {"engine.kind": "vllm", "engine.model": "org/model", "engine.args": []}
    accepted = Baseline("p", pins, {"reference": Population({"ranks": ["TP0_EP0", "TP1_EP1"]})})
    says(check(profile(), None, reference(*lines("TP0_EP0")), accepted), NOT_OBSERVABLE, "which the baseline has")
    says(check(profile(), None, first, accepted), PASSED)
