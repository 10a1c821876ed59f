"""What a wrong profile is told, word for word: place, key, what was expected, what stands there, how to write it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_profile import CONTAINER, IMAGE_ID, MINIMAL, errors, read

from pytest_startup.profile.load import load
from pytest_startup.profile.problems import ProfileError

#: (what is added to the minimal profile, from line 6 on; the messages)
ADDED = [
    ("expct: {}", ["p.yaml:6: expct: unknown key; did you mean expect?"]),
    (
        "zzz: 1",
        [
            "p.yaml:6: zzz: unknown key; known here: schema, name, engine, launch, nodes, caches, host, deadlines, restarts, "
            "settle, expect, waive"
        ],
    ),
    (
        "deadlines: {ready: 1800}",
        ["p.yaml:6: deadlines.ready: expected a duration such as 90s, 20m or 1h30m; found the number 1800; write 30m"],
    ),
    (
        "deadlines: {ready: 1:30}",
        [
            'p.yaml:6: deadlines.ready: expected a duration such as 90s, 20m or 1h30m; found the text "1:30"; '
            "write 1h30m or 1m30s"
        ],
    ),
    (
        "deadlines: {ready: 20 min}",
        [
            'p.yaml:6: deadlines.ready: expected a duration such as 90s, 20m or 1h30m; found the text "20 min"; '
            "write 20m"
        ],
    ),
    ("deadlines: {graph-capture: 5m}", ["p.yaml:6: deadlines.graph-capture: unknown key; did you mean graph_capture?"]),
    ("deadlines: {stop: 0s}", ["p.yaml:6: deadlines.stop: expected more than 0"]),
    (
        "deadlines: {weights: 40m}",
        [
            "p.yaml:6: deadlines.weights: 40m is longer than the whole start, ready: 30m (the default); "
            "expected at most that, or a longer ready"
        ],
    ),
    (
        "expect: {throughput: {concurrency: [1], tolerance: 3}}",
        [
            "p.yaml:6: expect.throughput.tolerance: expected a percentage such as 3% or a fraction from 0 to 1; "
            "found the number 3; write 3%"
        ],
    ),
    (
        "expect: {throughput: {output_tokens: 64}}",
        ["p.yaml:6: expect.throughput: concurrency is missing; expected a list"],
    ),
    (
        "expect: {throughput: {concurrency: [1, 1.5, 0, 1]}}",
        [
            "p.yaml:6: expect.throughput.concurrency.1: expected a whole number of at least 1; found the number 1.5",
            "p.yaml:6: expect.throughput.concurrency.2: expected a whole number of at least 1; found the number 0",
            "p.yaml:6: expect.throughput.concurrency.3: given twice: the number 1; remove one",
        ],
    ),
    (
        "expect: {throughput: {concurrency: [1, 8], min_tokens_per_second: {4: 20}}}",
        [
            "p.yaml:6: expect.throughput.min_tokens_per_second.4: concurrency 4 is not measured; expected one of 1, 8"
        ],
    ),
    (
        "expect: {tiers: {sessions: {count: 4, prompt_tokens: 9}}}",
        [
            "p.yaml:6: expect.tiers.sessions: only external is judged by the returns of sessions, and there is none; "
            "expected external: true, or its least rate, beside it"
        ],
    ),
    (
        "expect: {tiers: {external: false, sessions: {count: 4, prompt_tokens: 9}}}",
        [
            "p.yaml:6: expect.tiers.sessions: only external is judged by the returns of sessions, and that is false; "
            "expected external: true, or its least rate, beside it"
        ],
    ),
    (
        "expect: {tiers: {external: true, sessions: {count: 4, turns: 1, prompts: 9}}}",
        [
            "p.yaml:6: expect.tiers.sessions: prompt_tokens is missing; expected a whole number of at least 1",
            "p.yaml:6: expect.tiers.sessions.turns: expected a whole number of at least 2; found the number 1",
            "p.yaml:6: expect.tiers.sessions.prompts: unknown key; did you mean prompt_tokens?",
        ],
    ),
    (
        "expect: {autotune: {hits: al}}",
        ['p.yaml:6: expect.autotune.hits: expected all, none or any; found the text "al"; did you mean all?'],
    ),
    (
        "expect: {completion: {prompt: x, chat: yes}}",
        ['p.yaml:6: expect.completion.chat: expected true or false; found the text "yes"; write true'],
    ),
    (
        "expect: {completion: {prompt: x, max_tokens: '8'}}",
        [
            'p.yaml:6: expect.completion.max_tokens: expected a whole number of at least 1; found the text "8"; '
            "write 8 without quotes"
        ],
    ),
    ("expect: {completion: {prompt: ''}}", ['p.yaml:6: expect.completion.prompt: expected text; found the text ""']),
    (
        "expect: {kv: {tokens: base}}",
        [
            "p.yaml:6: expect.kv.tokens: expected baseline, a number or {min: …, max: …}; "
            'found the text "base"; did you mean baseline?'
        ],
    ),
    (
        "expect: {kv: {tokens: '300000'}, log: {forbid: is broken}, throughput: {concurrency: 8}}",
        [
            "p.yaml:6: expect.kv.tokens: expected baseline, a number or {min: …, max: …}; "
            'found the text "300000"; write 300000 without quotes',
            'p.yaml:6: expect.log.forbid: expected a list; found the text "is broken"; write ["is broken"]',
            "p.yaml:6: expect.throughput.concurrency: expected a list; found the number 8; write [8]",
        ],
    ),
    ("expect: {quality: {prompts: hi}}", ['p.yaml:6: expect.quality.prompts: expected a list; found the text "hi"']),
    ("expect: {kv: {tokens: {mn: 1}}}", ["p.yaml:6: expect.kv.tokens.mn: unknown key; did you mean min?"]),
    ("expect: {kv: {tokens: {min: 9, max: 3}}}", ["p.yaml:6: expect.kv.tokens.min: 9 is above max 3; expected min ≤ max"]),
    (
        "expect:\n  log:\n    forbid: ['ok', 'a(b']",
        [
            "p.yaml:8: expect.log.forbid.1: not a regular expression: missing ), unterminated subpattern at position 1; "
            "for the text itself write a\\(b"
        ],
    ),
    (
        "caches: {compile-cache: {path: cache}}\nrestarts2: []",
        ["p.yaml:7: restarts2: unknown key; did you mean restarts?"],
    ),
    (
        "caches: {c: {path: /}}",
        [
            "p.yaml:6: caches.c.path: / holds more than a cache, and wiping would remove all of it; "
            "expected a folder of its own"
        ],
    ),
    (
        "caches: {c: {path: ..}}",
        [
            "p.yaml:6: caches.c.path: /nowhere holds more than a cache, and wiping would remove all of it; "
            "expected a folder of its own"
        ],
    ),
    ("waive: [{check: graphs}]", ["p.yaml:6: waive.0: reason is missing; expected a reason"]),
    ("waive: [{check: graphs, reason: ' '}]", ['p.yaml:6: waive.0.reason: expected a reason; found the text " "']),
    (
        "waive: [{check: graph, reason: x}]",
        ["p.yaml:6: waive.0.check: unknown check graph; did you mean graphs?"],
    ),
    (
        "waive: [{check: kv, reason: x}, {check: kv, reason: y}]",
        ["p.yaml:6: waive.1.check: kv is waived twice, also in waive.0; remove one"],
    ),
    (
        "waive: [{check: kv, reason: x, until: 2026-11-28}]",
        [
            "p.yaml:6: waive.0.until: the waiver of kv ended on 2026-11-28, today is 2026-11-29; "
            "expected a later date, or no waiver"
        ],
    ),
    (
        "waive: [{check: kv, reason: x, until: 2026-02-30}]",
        ["p.yaml:6: waive.0.until: 2026-02-30 is no day of the calendar; expected a date YYYY-MM-DD"],
    ),
    (
        "waive: [{check: kv, reason: x, until: 2027/3/1}]",
        ['p.yaml:6: waive.0.until: expected a date YYYY-MM-DD; found the text "2027/3/1"; write 2027-03-01'],
    ),
    ("host: {page_size: 64kb pages}", ['p.yaml:6: host.page_size: expected a size such as 512m or 16g; found the text "64kb pages"']),
    ("host: {page_size: 64 KiB}", ['p.yaml:6: host.page_size: expected a size such as 512m or 16g; found the text "64 KiB"; write 64k']),
    (
        "expect: {completion: {prompt: 'hello ${USER}'}}",
        [
            "p.yaml:6: expect.completion.prompt: ${USER} is not allowed here, where the profile would mean something else "
            "on each machine; allowed in values of engine.env, engine.args, nodes.NAME.env, nodes.NAME.args, nodes.NAME.steps.N.exec and restarts.N.change; ${profile_dir} is allowed "
            "everywhere; for the text itself write $${"
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("added", "messages"), ADDED, ids=[a[0].replace("\n", " ") for a in ADDED])
def test_message_of_an_addition(added: str, messages: list[str]) -> None:
    assert errors(MINIMAL + added + "\n") == messages


#: (profile text as it replaces a line of the minimal one, the messages)
REPLACED = [
    (
        "engine: {kind: vllm, model: org/model}",
        'engine: {kind: vllm, model: m, args: ["--max-model-len 4096", --seed, "-1 x", "-cc {}", "--a=b c"]}',
        [
            "p.yaml:3: engine.args.0: an option and its value in one element; expected two: --max-model-len, '4096'",
            "p.yaml:3: engine.args.3: an option and its value in one element; expected two: -cc, '{}'",
        ],
    ),
    (
        "engine: {kind: vllm, model: org/model}",
        "engine: {kind: vlm, modl: org/model}",
        [
            "p.yaml:3: engine: model is missing; expected text",
            "p.yaml:3: engine.kind: unknown engine vlm; expected vllm, sglang, or one added by a hook; did you mean vllm?",
            "p.yaml:3: engine.modl: unknown key; did you mean model?",
        ],
    ),
    (
        "engine: {kind: vllm, model: org/model}",
        "engine: {kind: vllm, model: m, args: [--port, 8000, true], env: {A: false, B-C: x, D: [1]}}",
        [
            "p.yaml:3: engine.args.0: --port is set by us; expected it in launch.port",
            'p.yaml:3: engine.args.2: expected text; found true; write "true" in quotes',
            'p.yaml:3: engine.env.A: expected text; found false; write "false" in quotes',
            "p.yaml:3: engine.env.B-C: expected a name of letters, digits and _ as the key",
            "p.yaml:3: engine.env.D: expected text; found a list",
        ],
    ),
    (
        "launch: {process: {command: [vllm, serve]}}",
        "launch: {checkpoint: \"it's\", gpus: '0,1', process: {command: vllm serve}}",
        [
            'p.yaml:4: launch.checkpoint: expected a list; found the text "it\'s"; write ["it\'s"]',
            "p.yaml:4: launch.gpus: expected all, or a list of GPU indices or UUIDs; "
            'found the text "0,1"; write [0, 1]',
            'p.yaml:4: launch.process.command: expected a list; found the text "vllm serve"; write [vllm, serve]',
        ],
    ),
    (
        "engine: {kind: vllm, model: org/model}",
        "engine: {kind: vllm, model: m, args: '--tp 2 --y a,b --json \"{1}\"', env: {A: '${node.a.rank}'}}",
        [
            "p.yaml:3: engine.args: expected a list; found the text \"--tp 2 --y a,b --json \\\"{1}\\\"\"; "
            'write [--tp, 2, --y, "a,b", --json, "{1}"]',
            "p.yaml:3: engine.env.A: no value for ${node.a.rank}; this profile has no nodes",
        ],
    ),
    (
        "engine: {kind: vllm, model: org/model}",
        "engine: {kind: vllm, model: m, args: --eager, env: {T: '${HF_TOKN}', U: '${A:-b}', V: '${EMPTY}', W: '${profiledir}/x'}}",
        [
            'p.yaml:3: engine.args: expected a list; found the text "--eager"; write [--eager]',
            "p.yaml:3: engine.env.T: HF_TOKN is not set in the environment; did you mean ${HF_TOKEN}?",
            "p.yaml:3: engine.env.U: expected ${NAME}, without default or operator; found ${A:-b}; "
            "for the text itself write $${",
            "p.yaml:3: engine.env.V: EMPTY is empty in the environment",
            "p.yaml:3: engine.env.W: profiledir is not set in the environment; did you mean ${profile_dir}?",
        ],
    ),
    (
        "engine: {kind: vllm, model: org/model}",
        "engine: {kind: vllm, model: m, env: {HF_TOKEN: hf_abcdefGHIJ0123456789}}",
        ["p.yaml:3: engine.env.HF_TOKEN: a token stands here in plain text; expected ${VAR}, in engine.env or engine.args"],
    ),
    (
        "launch: {process: {command: [vllm, serve]}}",
        "launch: {port: 0}",
        [
            "p.yaml:4: launch: no launcher; expected exactly one of process, container and custom",
            "p.yaml:4: launch.port: expected a port from 1 to 65535, or auto; found the number 0",
        ],
    ),
    (
        "launch: {process: {command: [vllm, serve]}}",
        "launch: {process: {command: []}, custom: slurm, gpus: [0, 1, 0]}",
        [
            "p.yaml:4: launch.process.command: expected at least one entry; found an empty list",
            "p.yaml:4: launch.custom: a second launcher beside process; expected exactly one of process, container and custom",
            "p.yaml:4: launch.custom: unknown launcher slurm; expected one added by a hook (none is known)",
            "p.yaml:4: launch.gpus.2: given twice: the number 0; remove one",
        ],
    ),
    ("schema: 1", "schema: 2", ["p.yaml:1: schema: expected 1; found the number 2"]),
    ("name: small", "name: a b", ['p.yaml:2: name: expected letters, digits, . _ and -; found the text "a b"']),
    ("name: small", "name:", ["p.yaml:2: name: expected letters, digits, . _ and -; found nothing"]),
    (
        "restarts: [{kind: process}]",
        "restarts: [{kind: fresh-container, wipe: [compile]}]",
        [
            "p.yaml:5: restarts.0.kind: fresh-container needs launch.container; expected process with launch.process",
            "p.yaml:5: restarts.0.wipe.0: no entry compile in caches; known: none",
        ],
    ),
    (
        "restarts: [{kind: process}]",
        "restarts: [{kind: proces, times: 0}]",
        [
            "p.yaml:5: restarts.0.kind: expected process, same-container or fresh-container; "
            'found the text "proces"; did you mean process?',
            "p.yaml:5: restarts.0.times: expected a whole number from 1 to 100; found the number 0",
        ],
    ),
    (
        "restarts: [{kind: process}]",
        "restarts: {kind: process}",
        ["p.yaml:5: restarts: expected a list; found a mapping"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "instead", "messages"), REPLACED, ids=[r[1] for r in REPLACED])
def test_message_of_a_replacement(line: str, instead: str, messages: list[str]) -> None:
    assert line in MINIMAL
    assert errors(MINIMAL.replace(line, instead), {"HF_TOKEN": "x", "EMPTY": ""}) == messages


CONTAINERS = [
    (
        "image: vllm/vllm-openai:latest",
        [
            "p.yaml:4: launch.container.image: vllm/vllm-openai:latest is a tag, and a tag can move; expected an image id "
            "(sha256:…) or NAME@sha256:…; find the id to pin with: docker image inspect -f '{{.Id}}' vllm/vllm-openai:latest"
        ],
    ),
    (
        "image: vllm/vllm-openai@sha256:0123",
        ["p.yaml:4: launch.container.image: expected sha256: and 64 lower-case hex digits; found sha256:0123"],
    ),
    (
        f"image: '{IMAGE_ID}', volumes: {{cache/x: /cache, ./c: /cache, v: cache}}",
        [
            "p.yaml:4: launch.container.volumes../c: /cache is mounted twice, also from cache/x; expected one source",
            "p.yaml:4: launch.container.volumes.cache/x: neither a path nor a volume's name; "
            "for a path relative to the profile write ./cache/x",
            "p.yaml:4: launch.container.volumes.v: expected an absolute path in the container, with :ro for read-only; "
            'found the text "cache"',
        ],
    ),
    (
        f"image: '{IMAGE_ID}', shm_size: 16 GB, ulimits: {{memlock: unlimited}}, devices: [infiniband]",
        [
            "p.yaml:4: launch.container.devices.0: expected a device such as /dev/infiniband or nvidia.com/gpu=all; "
            'found the text "infiniband"',
            'p.yaml:4: launch.container.shm_size: expected a size such as 512m or 16g; found the text "16 GB"; write 16g',
            "p.yaml:4: launch.container.ulimits.memlock: expected a limit such as -1, 67108864 or 1024:4096; "
            'found the text "unlimited"',
        ],
    ),
    (
        f"image: '{IMAGE_ID}', files: [{{host: a, path: b, sha256: ABC}}], log: /x, gpus: some",
        [
            'p.yaml:4: launch.container.files.0.path: expected an absolute path in the container; found the text "b"',
            'p.yaml:4: launch.container.files.0.sha256: expected 64 lower-case hex digits; found the text "ABC"',
            "p.yaml:4: launch.container.gpus: expected all, or a list of GPU indices or UUIDs; "
            'found the text "some"',
            'p.yaml:4: launch.container.log: expected a mapping (key: value); found the text "/x"',
        ],
    ),
    (
        f"image: '{IMAGE_ID}', docker_host: unix:///x, context: y",
        ["p.yaml:4: launch.container.context: both docker_host and context; expected one of them"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("container", "messages"), CONTAINERS, ids=[c[0][:60] for c in CONTAINERS])
def test_message_of_a_container(container: str, messages: list[str]) -> None:
    assert sorted(errors(CONTAINER.replace(f'image: "{IMAGE_ID}"', container))) == sorted(messages)


def test_the_gpus_of_launch_and_container_must_agree() -> None:
    both = CONTAINER.replace(f'"{IMAGE_ID}"', f'"{IMAGE_ID}", gpus: [0]')
    assert errors(both.replace("launch: {", "launch: {gpus: [1], ")) == [
        "p.yaml:4: launch.gpus: differs from launch.container.gpus; expected the same GPUs, or only one of the two keys"
    ]
    for_all = CONTAINER.replace(f'"{IMAGE_ID}"', f'"{IMAGE_ID}", gpus: all')
    assert read(for_all.replace("launch: {", "launch: {gpus: [1], ")).launch.gpus == ("1",)
    assert read(for_all).launch.gpus == ("all",)


def test_a_same_container_restart_can_not_change_anything() -> None:
    text = CONTAINER.replace("same-container}", "same-container, change: {args: [--eager]}}")
    assert errors(text) == [
        "p.yaml:5: restarts.0.change: the same container keeps its arguments and environment; "
        "expected kind: fresh-container for a change"
    ]


#: The wording behind "not YAML" is that of the YAML parser.
SYNTAX = [
    (b"a: [1", "p.yaml:2:1: not YAML: "),
    (b"a: 1\nb: 2\nc: 3\n  d: 4\n", "p.yaml:4:4: not YAML: mapping values are not allowed"),
    (b"schema: 1\n\tname: x\n", "p.yaml:2:1: not YAML: "),
    (b"a: 'x", "p.yaml:1:6: not YAML: found unexpected end of stream (while scanning a quoted scalar"),
    (b"[" * 200_000, "p.yaml:1:"),
    (b"a: b\xff\n", "p.yaml:1:5: not UTF-8 text (byte 0xff)"),
    (b"a: 1\nb: \x1b[31m", "p.yaml:2:4: character U+001B is not allowed; write an escape in quotes"),
    (b"a: 1\n---\nb: 2\n", "p.yaml:2:1: a second document begins; a profile is one document"),
    (b"%YAML 1.1\n---\na: 1\n", "p.yaml:1:1: directives (%YAML, %TAG) are not supported"),
    (b"[" * 40 + b"]" * 40, "p.yaml:1:33: nested deeper than 32 levels"),
    (b"#" * (2 << 20), "p.yaml:1:1: larger than 1 MiB; that is no profile"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "message"), SYNTAX, ids=[repr(s[0][:20]) for s in SYNTAX])
def test_text_that_can_not_be_read(raw: bytes, message: str) -> None:
    (got,) = errors(raw)
    assert got.startswith(message)


def test_features_that_surprise_are_refused_all_at_once() -> None:
    text = MINIMAL + (
        "a: &x {b: 1}\n"
        "c: *x\n"
        "d: !!python/object/apply:os.system ['true']\n"
        "e: {<<: {f: 1}}\n"
        "name: other\n"
        "? [1, 2]\n"
        ": g\n"
        "host: {kernel: !custom 6.1, ~: 1}\n"
    )
    got = [line for line in errors(text) if "unknown key" not in line]
    assert got == [
        "p.yaml:6: a: anchors (&x) are not supported; write the values out",
        "p.yaml:7: c: aliases (*x) are not supported; write the values out",
        "p.yaml:8: d: tags (!!python/object/apply:os.system) are not supported; write the plain value",
        "p.yaml:9: e: merge keys (<<) are not supported; write the values out",
        "p.yaml:10: name: key is given twice, first in line 2; remove one",
        "p.yaml:11: a key must be text; expected NAME: value",
        "p.yaml:13: host.kernel: tags (!custom) are not supported; write the plain value",
        "p.yaml:13: host: a key is missing before ':'; expected NAME: value",
    ]


@pytest.mark.parametrize("raw", [b"", b"# nothing\n", b"---\n", b"- a\n", b"text\n", b"~\n"])
def test_a_file_that_is_no_mapping(raw: bytes) -> None:
    (message,) = errors(raw)
    assert message.startswith("p.yaml:")
    assert message.endswith(
        "expected a mapping (schema: 1, name: …, engine: …, launch: …); `pytest-startup init` writes one"
    )


def test_an_empty_mapping_lacks_four_keys() -> None:
    assert errors("{}") == [
        "p.yaml:1: engine is missing; expected a mapping (key: value)",
        "p.yaml:1: launch is missing; expected a mapping (key: value)",
        "p.yaml:1: name is missing; expected letters, digits, . _ and -",
        "p.yaml:1: schema is missing; expected 1",
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "gh200-mimo.yaml").write_text(MINIMAL)
    with pytest.raises(ProfileError) as caught:
        load(tmp_path / "gh200_mimo.yaml", {})
    assert str(caught.value) == f"{tmp_path}/gh200_mimo.yaml: no such file; did you mean gh200-mimo.yaml?"
    with pytest.raises(ProfileError) as caught:
        load(tmp_path, {})
    assert str(caught.value) == f"{tmp_path}: is a folder; expected a file"


def test_messages_never_hold_a_secret() -> None:
    text = MINIMAL.replace(
        "model: org/model", "model: org/model, kind2: hf_abcdefGHIJ0123456789, version: [x], env: {A: '${S}'}"
    )
    shown = "\n".join(errors(text + "host: {page_size: sk-0123456789abcdefghij}\n", {"S": "swordfish"}))
    assert "page_size" in shown
    assert "hf_abc" not in shown
    assert "sk-0123" not in shown
    assert "swordfish" not in shown


def test_all_errors_of_a_file_come_at_once_in_its_order() -> None:
    text = (
        MINIMAL.replace("name: small", "nam: small").replace("kind: process}", "kind: proces}")
        + "settle: 5\nname: x y\n"
    )
    lines = errors(text)
    assert [line.split(":")[1] for line in lines] == ["2", "5", "6", "7"]
    assert read(MINIMAL).name == "small"
