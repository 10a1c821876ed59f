"""What a right profile becomes; and that any text becomes either a profile or a list of problems with lines."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers_profile import CONTAINER, IMAGE_ID, MINIMAL, read
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_startup.profile import expect as e
from pytest_startup.profile import model as m
from pytest_startup.profile.load import load
from pytest_startup.profile.problems import ProfileError
from pytest_startup.profile.resolve import resolved_json
from pytest_startup.profile.validate import KEYWORDS, NOTES, kind_of, profile_schema, validate
from pytest_startup.profile.yamltree import parse
from pytest_startup.redact import MASK

CPU = """\
schema: 1
name: cpu-vllm
engine: {kind: vllm, version: 0.31.0+cpu, model: ../../.engine/models/facts, args: [--max-model-len, "1024"], env: {VLLM_CACHE_ROOT: ../../.engine/cache}}
launch: {process: {command: [../../.engine/venv/bin/vllm, serve]}, port: auto}
caches: {compile-cache: {path: ../../.engine/cache/torch_compile_cache, kind: compile}}
restarts: [{kind: process, times: 2}, {kind: process, drop_page_cache: true}]
expect: {kv: {tokens: 262144}, throughput: {concurrency: [1, 8], output_tokens: 64, tolerance: 30%}}
waive: [{check: graphs, reason: "the CPU platform has no CUDA graphs"}]
"""  # noqa: E501  one line per key, as such a profile is written


def test_the_cpu_profile(tmp_path: Path) -> None:
    folder = tmp_path / "examples" / "cpu-vllm"
    folder.mkdir(parents=True)
    (tmp_path / ".engine" / "models" / "facts").mkdir(parents=True)
    (folder / "profile.yaml").write_text(CPU)
    profile = load(folder / "profile.yaml", {})
    engine = tmp_path / ".engine"
    assert profile.engine == m.Engine(
        kind="vllm",
        model=str(engine / "models" / "facts"),
        version="0.31.0+cpu",
        args=("--max-model-len", "1024"),
        env={"VLLM_CACHE_ROOT": "../../.engine/cache"},
    )
    assert profile.launch == m.Launch(
        process=m.ProcessLaunch((str(engine / "venv" / "bin" / "vllm"), "serve"), folder),
        checkpoint=(engine / "models" / "facts",),
    )
    assert profile.caches == (m.CacheFolder("compile-cache", engine / "cache" / "torch_compile_cache", "compile"),)
    assert [(r.name, r.population) for r in profile.restarts] == [
        ("restart-1", "process"),
        ("restart-2", "process"),
        ("restart-3", "process+page-cache-dropped"),
    ]
    assert profile.expect.kv.tokens == e.Range(exact=262144)
    assert profile.expect.throughput == e.ExpectThroughput((1, 8), tolerance=0.3)
    assert profile.waiver("graphs") == m.Waiver("graphs", "the CPU platform has no CUDA graphs")
    assert profile.place("expect.kv.tokens") == "profile.yaml:7"
    assert profile.place("restart-3.kind") == "profile.yaml:6"
    assert profile.warnings == ()


def test_defaults_are_those_of_the_dataclasses_and_of_the_schema() -> None:
    profile = read(MINIMAL)
    for field in dataclasses.fields(m.Profile):
        if field.name in ("host", "deadlines", "expect", "settle", "caches", "waivers"):
            default = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
            assert getattr(profile, field.name) == default, field.name
    spelled = read(MINIMAL + _all_defaults())
    assert spelled.deadlines == profile.deadlines
    assert spelled.expect == dataclasses.replace(
        profile.expect,
        autotune=e.ExpectAutotune(),
        throughput=e.ExpectThroughput((1,)),
        quality=e.ExpectQuality((e.Prompt("p"),)),
    )
    assert spelled.launch == profile.launch
    assert spelled.settle == profile.settle


def _all_defaults() -> str:
    """Every default that the schema states, written out."""
    needed = {"throughput": {"concurrency": [1]}, "quality": {"prompts": [{"prompt": "p"}]}}
    expect: dict[str, Any] = {}
    properties = profile_schema()["properties"]
    for name, part in properties["expect"]["properties"].items():
        inner = {k: v["default"] for k, v in part.get("properties", {}).items() if "default" in v}
        if inner:
            expect[name] = {**needed.get(name, {}), **inner}
        elif "default" in part:
            expect[name] = part["default"]
    deadlines = {k: v["default"] for k, v in properties["deadlines"]["properties"].items() if "default" in v}
    return (
        f"expect: {json.dumps(expect)}\ndeadlines: {json.dumps(deadlines)}\nsettle: {properties['settle']['default']}\n"
    )


def test_text_stays_as_it_is_written() -> None:
    profile = read(
        MINIMAL.replace(
            "model: org/model",
            "model: org/model, version: 0.10, revision: 0123456, served_name: on, "
            "args: [--a, 1.50, 1_000, yes, 1:30, 2026-11-29, 0755], env: {N: 1e3, M: no}",
        )
    )
    assert profile.engine.version == "0.10"
    assert profile.engine.revision == "0123456"
    assert profile.engine.served_name == "on"
    assert profile.engine.args == ("--a", "1.50", "1_000", "yes", "1:30", "2026-11-29", "0755")
    assert profile.engine.env == {"N": "1e3", "M": "no"}


def test_every_part_of_a_container() -> None:
    text = CONTAINER.replace(
        f'image: "{IMAGE_ID}"',
        f"""image: "vllm/vllm-openai@{IMAGE_ID}", entrypoint: [], command: [vllm, serve], name: gate-1,
  volumes: {{../cache: /cache, hf: /root/.cache:ro, "${{profile_dir}}/x": /x}},
  files: [{{host: a/b.py, path: /usr/b.py, sha256: "{"0" * 64}"}}], gpus: [0, GPU-1a], network: host, ipc: host,
  shm_size: 16g, ulimits: {{memlock: -1, stack: 67108864, nofile: "1024:4096"}}, devices: [/dev/infiniband],
  cap_add: [SYS_NICE], runtime: nvidia, user: 1000:1000, working_dir: /w, memory: 64g, init: true,
  docker_host: unix:///run/d.sock, engine_options: {{OomScoreAdj: -5, Dns: [1.1.1.1], Sysctls: {{a: null, b: 0.5}}}},
  exec_command: [vllm, serve], log: {{file: /workspace/vllm.log}}""",
    )
    launch = read(text).launch
    assert launch.container == m.ContainerLaunch(
        image=f"vllm/vllm-openai@{IMAGE_ID}",
        entrypoint=(),
        command=("vllm", "serve"),
        name="gate-1",
        volumes={"/nowhere/cache": "/cache", "hf": "/root/.cache:ro", "/nowhere/profiles/x": "/x"},
        files=(m.ContainerFile(Path("/nowhere/profiles/a/b.py"), "/usr/b.py", "0" * 64),),
        gpus=("0", "GPU-1a"),
        network="host",
        ipc="host",
        shm_size="16g",
        ulimits={"memlock": "-1", "stack": "67108864", "nofile": "1024:4096"},
        devices=("/dev/infiniband",),
        cap_add=("SYS_NICE",),
        runtime="nvidia",
        user="1000:1000",
        working_dir="/w",
        memory="64g",
        init=True,
        docker_host="unix:///run/d.sock",
        engine_options={"OomScoreAdj": -5, "Dns": ["1.1.1.1"], "Sysctls": {"a": None, "b": 0.5}},
        exec_command=("vllm", "serve"),
        log_file="/workspace/vllm.log",
    )
    assert launch.gpus == ("0", "GPU-1a"), "the GPUs of the container are the GPUs of the launch"


def test_every_part_of_what_is_expected() -> None:
    expect = read(
        MINIMAL
        + """\
expect:
  backend: {attention: FLASHINFER, moe: FLASHINFER_CUTLASS, kv_dtype: fp8, fallback: allow}
  autotune: {ranks: 2, records_per_rank: 42, ops: [gemm1]}
  artifacts: {missing: any, ranks: 2}
  graphs: {mode: FULL, sizes: [1, 2], captured: {FULL: 3}, max_seconds: 1m30s}
  kv: {tokens: {min: 100}, available_gib: 36.5, tolerance: 1%}
  memory: {weights_gib_per_rank: {max: 84}, tolerance: 0.05}
  throughput: {concurrency: [1], min_tokens_per_second: {1: 19.82}}
  quality: {prompts: [{prompt: x, chat: true}], logprob: 0.2}
  completion: {prompt: y, contains: z, max_tokens: 8}
  tiers: {prefix: true, external: 50%, spec_decode: 0.4, sessions: {count: 32, prompt_tokens: 114000}}
  log: {forbid: [bad], require: [{pattern: good, every: rank}]}
"""
    ).expect
    assert expect.backend == e.ExpectBackend("FLASHINFER", moe="FLASHINFER_CUTLASS", kv_dtype="fp8", fallback="allow")
    assert expect.autotune == e.ExpectAutotune(2, 42, ops=("gemm1",))
    assert expect.artifacts == e.ExpectArtifacts(missing="any", ranks=2)
    assert expect.graphs == e.ExpectGraphs("FULL", (1, 2), {"FULL": 3}, 90.0)
    assert expect.kv == e.ExpectKv(e.Range(min=100), e.Range(exact=36.5), 0.01)
    assert expect.memory == e.ExpectMemory(e.Range(max=84), tolerance=0.05)
    assert expect.throughput == e.ExpectThroughput((1,), min_tokens_per_second={1: 19.82})
    assert expect.quality == e.ExpectQuality((e.Prompt("x", chat=True),), logprob=0.2)
    assert expect.completion == e.Prompt("y", "z", 8)
    assert expect.tiers == e.ExpectTiers(True, 0.5, 0.4, e.ExpectSessions(32, 114000, 16, 2, 8))
    assert expect.log == e.ExpectLog((e.LogPattern("bad"),), (e.LogPattern("good", "rank"),))


def test_environment_values_become_secrets_and_are_never_shown() -> None:
    text = MINIMAL.replace(
        "model: org/model",
        "model: org/model, args: [--api-key, '${K}', '${profile_dir}/x'], "
        "env: {HF_TOKEN: '${T}', X: 'a-${T}-$${T}-$T'}",
    )
    profile = read(text, {"T": "swordfish", "K": "mackerel"})
    assert profile.engine.env == {"HF_TOKEN": "swordfish", "X": "a-swordfish-${T}-$T"}
    assert profile.engine.args == ("--api-key", "mackerel", "/nowhere/profiles/x")
    assert profile.secrets == {"swordfish", "mackerel"}
    shown = json.dumps(resolved_json(profile))
    assert "swordfish" not in shown
    assert "mackerel" not in shown
    assert resolved_json(profile)["engine"]["env"] == {"HF_TOKEN": MASK, "X": f"a-{MASK}-${{T}}-$T"}  # type: ignore[index,call-overload]


def test_what_starts_no_engine_needs_no_secrets(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(MINIMAL.replace("model: org/model", "model: m, env: {A: 'x-${T}', B: '${K}'}, args: ['${T}']"))
    profile = load(file, {"K": "mackerel"}, need_environment=False)
    assert profile.engine.env == {"A": "x-${T}", "B": "mackerel"}
    assert profile.engine.args == ("${T}",)
    assert profile.secrets == {"mackerel"}
    with pytest.raises(ProfileError, match="T is not set"):
        load(file, {"K": "mackerel"})


def test_a_model_is_a_path_only_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "model").mkdir()
    assert read(MINIMAL, folder=str(tmp_path)).engine.model == str(tmp_path / "org" / "model")
    assert read(MINIMAL).engine.model == "org/model"
    assert read(MINIMAL).launch.checkpoint == ()


def test_warnings() -> None:
    assert "no" in read(MINIMAL.replace("[{kind: process}]", "[]")).warnings[0]
    (warning,) = read(MINIMAL.replace("kind: process}", "kind: process, drop_page_cache: true}")).warnings
    assert warning.startswith("launch.checkpoint: ")


def test_a_placeholder_image_is_warned_of() -> None:
    (warning,) = read(CONTAINER.replace(IMAGE_ID, "sha256:" + "0" * 64)).warnings
    assert warning == "launch.container.image: the digest is the placeholder of an example; pin your own"


def test_the_placeholder_model_of_a_written_profile_is_warned_of() -> None:
    (warning,) = read(MINIMAL.replace("org/model", "ORGANISATION/MODEL")).warnings
    assert warning == (
        "engine.model: ORGANISATION/MODEL is a placeholder; name your own, or a path relative to the profile"
    )


def test_names_added_by_hooks_are_known(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "schema: 1\nname: a\nengine: {kind: mine, model: m}\nlaunch: {custom: slurm, options: {nodes: 2}}\n"
        "restarts: [{kind: fresh-container}]\nwaive: [{check: extra, reason: r}]\n"
    )
    profile = load(file, {}, checks=["extra"], engines=["mine"], launchers=["slurm"])
    assert profile.launch.custom == "slurm"
    assert profile.launch.options == {"nodes": 2}


# --- any text ---------------------------------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    re.findall(
        r"\S+",
        "schema name engine kind model vllm launch process command port auto gpus caches restarts times wipe change "
        "args env expect kv tokens throughput concurrency waive check reason until deadlines ready container image "
        "volumes log forbid 20m 3% 1 -1 0.5 true null ~ << *a &a !!str ${X} ${profile_dir} [ ] { } , : - ? | > ' "
        '" # --- ... %YAML \ud7ff é \x00 (',
    )
)
_LAYOUT = st.sampled_from(["\n", "\n  ", "\n    ", " ", ": ", ", ", "\n- ", "\t", "\r\n", ""])
_SOUP = st.lists(st.tuples(_WORDS, _LAYOUT), max_size=40).map(lambda rows: "".join(w + gap for w, gap in rows))
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["20m", "${X}", "3%"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


EXAMPLES = Path(__file__).parent.parent / "examples"
FULL = (Path(__file__).parent / "data" / "profile_full.yaml").read_bytes()
FULL_JSON = json.dumps(parse(FULL).data)


def mutated(data: st.DataObject, values: st.SearchStrategy[Any]) -> Any:
    """The full profile with another value at some place."""
    tree: Any = json.loads(FULL_JSON)
    parent = tree
    while True:
        key = data.draw(st.sampled_from(list(parent) if isinstance(parent, dict) else list(range(len(parent)))))
        if not isinstance(parent[key], (dict, list)) or not parent[key] or data.draw(st.integers(0, 3)) == 0:
            parent[key] = data.draw(values)
            return tree
        parent = parent[key]


def holds(raw: bytes) -> None:
    """Either a profile, or problems with lines that exist."""
    try:
        profile = read(raw)
    except ProfileError as e:
        refused = e
    else:
        json.dumps(resolved_json(profile))
        return
    last = raw.count(b"\n") + raw.count(b"\r") + 2
    assert refused.problems
    assert all(1 <= p.line <= last and p.column >= 1 and p.text for p in refused.problems), refused.problems
    assert len(refused.lines()) == len(str(refused).splitlines())


@given(_SOUP)
@settings(max_examples=300, deadline=None)
@example("a: \ud7ff")
def test_any_soup_of_yaml_words(text: str) -> None:
    holds(text.encode())


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes(raw: bytes) -> None:
    holds(raw)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_value_in_any_place(data: st.DataObject) -> None:
    """A full profile in which one value is another one, or gone, or one key is new."""
    tree = mutated(data, _VALUES)
    holds(json.dumps(tree, allow_nan=True).encode("utf-8", "replace"))


# --- the schema -------------------------------------------------------------------------------------------------------


def test_the_full_profile_is_right_and_uses_every_key() -> None:
    read(FULL, {"HF_TOKEN": "x" * 8})
    schema = profile_schema()

    def keys(part: Any, at: str) -> Iterator[str]:
        for key, inner in part.get("properties", {}).items():
            yield f"{at}.{key}"
            yield from keys(inner, f"{at}.{key}")
        for inner in (part.get("items"), part.get("additionalProperties"), *part.get("anyOf", ())):
            if isinstance(inner, dict):
                yield from keys(inner, at)

    def used(data: Any, at: str) -> Iterator[str]:
        for key, inner in data.items() if isinstance(data, dict) else ():
            yield f"{at}.{key}"
            yield from used(inner, f"{at}.{key}")
        for inner in data if isinstance(data, list) else ():
            yield from used(inner, at)

    others = {".launch.custom", ".launch.options", ".launch.container.context", ".launch.process", ".nodes"}
    others |= {f".launch.process.{k}" for k in ("command", "cwd", "pass_env")}
    found = set(used(parse(FULL).data, ""))
    assert set(keys(schema, "")) - found == others, "these exclude keys that the file uses; all others stand in it"
    words = {key.rpartition(".")[2] for key in found}
    parts = [part for name, part in schema["$defs"].items() if name != "node"]  # its keys: test_nodes_profile
    shared = {key.rpartition(".")[2] for part in parts for key in keys(part, "")}
    assert shared - {"nodes"} <= words


def test_the_schema_uses_only_what_the_walker_knows() -> None:
    def walk(schema: Any) -> None:
        assert set(schema) <= KEYWORDS | NOTES, set(schema) - KEYWORDS - NOTES
        if "pattern" in schema:
            assert schema["pattern"].startswith("^")
            assert schema["pattern"].endswith("$")
            assert "x-expected" in schema or schema["type"] == "string"
        for key in ("properties", "$defs"):
            for inner in schema.get(key, {}).values():
                walk(inner)
        for key in ("items", "additionalProperties", "propertyNames"):
            if isinstance(schema.get(key), dict):
                walk(schema[key])
        for inner in schema.get("anyOf", ()):
            walk(inner)

    walk(profile_schema())


@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_the_walker_agrees_with_the_jsonschema_package(data: st.DataObject) -> None:
    from jsonschema import Draft202012Validator

    tree = mutated(data, _VALUES.filter(lambda v: not str(v).endswith("\n") and not _odd_float(v)))
    ours = validate(tree, profile_schema())
    theirs = list(Draft202012Validator(profile_schema()).iter_errors(tree))
    assert bool(ours) == bool(theirs), (ours, theirs)


def _odd_float(value: Any) -> bool:
    """Whole floats are integers to JSON schema, but not to us (nobody writes an integer as ``1.0``); NaN is no JSON."""
    if isinstance(value, float):
        return value != value or value in (float("inf"), float("-inf")) or value.is_integer()
    if isinstance(value, dict):
        return any(_odd_float(v) or k.endswith("\n") for k, v in value.items())
    return isinstance(value, list) and any(_odd_float(v) or str(v).endswith("\n") for v in value)


def test_json_schema_is_a_schema() -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(profile_schema())
    assert kind_of(True) == "boolean"


def test_reading_a_profile_is_fast() -> None:
    """CPU time of a fresh interpreter: import and load of a profile of 300 lines (idle: below 100 ms)."""
    code = (
        "import time, sys, pathlib, re, json, dataclasses, typing\n"
        "raw = pathlib.Path(sys.argv[1]).read_text() + '# a line of comment\\n' * 150\n"
        "begin = time.process_time()\n"
        "from pytest_startup.profile.load import load_bytes\n"
        "load_bytes(raw.encode(), pathlib.Path('/x/p.yaml'), {'HF_TOKEN': 'xxxxxxxx'})\n"
        "print(time.process_time() - begin, 'jsonschema' in sys.modules)\n"
    )
    file = Path(__file__).parent / "data" / "profile_full.yaml"
    times = []
    for _ in range(3):
        out = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
        seconds, imported = out.stdout.split()
        assert imported == "False", "its import alone takes longer than the reading"
        times.append(float(seconds))
    assert min(times) < 0.3, times  # a guard for a busy machine


@pytest.mark.parametrize(
    "name", sorted(str(p.relative_to(EXAMPLES)) for p in (*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("cpu-vllm/*.yaml")))
)
def test_the_examples_are_right(name: str) -> None:
    profile = load(EXAMPLES / name, {"HF_TOKEN": "x" * 8, "VLLM_API_KEY": "y" * 8})
    assert profile.restarts
