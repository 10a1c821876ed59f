"""``pytest-startup explain`` from where a user stands."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from helpers_logs import COLD, FAILED, traffic

from pytest_startup.explain import main

SCHEMA = json.loads(Path(__file__).parent.parent.joinpath("schemas/explain.schema.json").read_text())
NEW_WORDING = "(EngineCore pid=9) INFO 12-01 12:00:31 [x.py:1] Paged KV cache holds 5 GiB of memory\n"


@pytest.fixture
def log(tmp_path):
    def write(text: str | bytes, name: str = "engine.log") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def answer(capsys, *argv: str, code: int = 0) -> dict:
    assert main(["--json", *argv]) == code
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, SCHEMA)
    return data


def text(capsys, *argv: str) -> str:
    main(list(argv))
    return capsys.readouterr().out


def value(data: dict, name: str):
    return [f["value"] for f in data["facts"] if f["fact"] == name]


def test_json_follows_its_schema(log, capsys):
    data = answer(capsys, log(COLD + traffic(100)))
    assert set(data) == {"facts", "starts"}
    assert value(data, "kv.tokens") == [292522]
    rates = [f for f in data["facts"] if f["fact"] == "cache.prefix_hit_rate"]
    assert [(f["value"], f["reports"]) for f in rates] == [(1.0, 10), (10.0, 10)]
    assert data["starts"][0]["ready"] == {"value": True, "line": 18}
    assert "sesame" not in json.dumps(data)


def test_what_is_shown_of_a_log_from_elsewhere_holds_no_secret(log, capsys):
    said = "RuntimeError: no answer of http://me:sesame@host:80/ with Authorization: Basic sesame123XX"
    path = log(f"{COLD.splitlines()[0]}\nTraceback (most recent call last):\n{said}\n")
    shown = [main([path]), capsys.readouterr().out, main(["--json", path]), capsys.readouterr().out]
    assert "http://me:[redacted]@host" in shown[1]
    assert "sesame" not in str(shown)


def test_a_failed_start_is_exit_code_1_and_names_its_cause(log, capsys):
    data = answer(capsys, log(FAILED), code=1)
    failure = data["starts"][0]["failure"]
    assert (failure["failed"], failure["phase"], failure["cause"]["line"]) == (True, "weights", 6)


def test_only_the_last_start_decides_the_exit_code(log, capsys):
    assert len(answer(capsys, log(FAILED + COLD))["starts"]) == 2


def test_no_facts_give_empty_lists(log, capsys):
    assert answer(capsys, log("hello\n"), code=3)["facts"] == []
    assert answer(capsys, log(""), code=3)["facts"] == []


def test_packed_logs(log, capsys):
    zstandard = pytest.importorskip("zstandard", reason="the extra zst is not installed")
    for name, data in (
        ("a.log.gz", gzip.compress(COLD.encode(), mtime=0)),
        ("a.log.zst", zstandard.ZstdCompressor().compress(COLD.encode())),
        ("misnamed.log", gzip.compress(COLD.encode(), mtime=0)),
    ):
        assert value(answer(capsys, log(data, name)), "kv.tokens") == [292522]


def test_a_damaged_archive_is_told_without_a_traceback(log, capsys):
    path = log(gzip.compress(COLD.encode())[:-30], "a.log.gz")
    assert main(["--json", path]) == 3
    out = capsys.readouterr()
    assert json.loads(out.out)["starts"]
    assert out.err.startswith(f"pytest-startup explain: {path}: ")


def test_a_missing_file_is_told(tmp_path, capsys):
    path = str(tmp_path / "none.log")
    assert main([path]) == 3
    assert f"pytest-startup explain: {path}: No such file or directory" in capsys.readouterr().err


def test_a_folder_is_told(tmp_path, capsys):
    assert main([str(tmp_path)]) == 3
    assert "Is a directory" in capsys.readouterr().err


def test_standard_input_and_the_command_itself():
    argv = [
        sys.executable,
        "-c",
        "import sys; from pytest_startup.cli import main; sys.exit(main())",
        "explain",
        "--json",
        "-",
    ]
    done = subprocess.run(argv, input=COLD.encode(), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert value(json.loads(done.stdout), "kv.tokens") == [292522]


def test_a_reader_of_ours_that_stops_early_causes_no_complaint(log):
    path = log(COLD + traffic(50_000, 2))
    argv = [
        sys.executable,
        "-c",
        "import sys; from pytest_startup.cli import main; sys.exit(main())",
        "explain",
        "--json",
        path,
    ]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.read(10)
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(60) == 0


@pytest.mark.parametrize("packed", [False, True])
def test_newest_first(log, capsys, packed):
    lines = (COLD + traffic(200)).splitlines(keepends=True)
    text = "".join(reversed(lines)).encode()
    data = answer(capsys, log(gzip.compress(text) if packed else text))
    assert [f["line"] for f in data["facts"] if f["fact"] == "kv.tokens"] == [len(lines) - 12]
    assert data["starts"][0]["ready"]["value"] is True
    assert len(data["starts"]) == 1
    rates = [f for f in data["facts"] if f["fact"] == "cache.prefix_hit_rate"]
    assert [(f["value"], f["line"], f["reports"]) for f in rates] == [(1.0, 191, 20), (20.0, 1, 20)]


def test_several_logs_and_several_nodes(log, capsys):
    head = log(COLD, "head/engine.log")
    worker = log(COLD.split("(APIServer pid=7) INFO:     Started", maxsplit=1)[0], "worker/engine.log")
    apart = answer(capsys, head, worker)
    assert [s["where"] for s in apart["starts"]] == [head, worker]
    together = answer(capsys, "--nodes", head, worker)
    assert len(together["starts"]) == 1
    assert {(f["node"], f["where"]) for f in together["facts"]} == {("head", head), ("worker", worker)}
    told = text(capsys, "--nodes", head, worker)
    assert any(f"({head}:" in line and f", {worker}:" in line for line in told.splitlines()), told
    assert "(line " in text(capsys, head)


def test_nodes_are_read_in_the_order_of_their_times(log, capsys):
    """The worker's own error is the cause, though the head's file comes first and mentions what followed."""
    head = log(
        "(EngineCore pid=9) INFO 11-29 12:00:00 [core.py:1] Initializing a V1 LLM engine (v0.31.0) with config: "
        "model='m'\n"
        "(Worker_TP0 pid=10) INFO 11-29 12:00:03 [m.py:1] Starting to load model m...\n"
        "(Worker_TP0 pid=10) ERROR 11-29 12:00:09 [w.py:1] Traceback (most recent call last):\n"
        "(Worker_TP0 pid=10) ERROR 11-29 12:00:09 [w.py:1] RuntimeError: Connection closed by peer [10.0.0.2]:5\n"
        "(EngineCore pid=9) ERROR 11-29 12:00:10 [core.py:2] EngineCore failed to start.\n",
        "head/engine.log",
    )
    worker = log(
        "(Worker_TP1 pid=20) INFO 11-29 12:00:03 [m.py:1] Starting to load model m...\n"
        "(Worker_TP1 pid=20) ERROR 11-29 12:00:05 [w.py:1] Traceback (most recent call last):\n"
        "(Worker_TP1 pid=20) ERROR 11-29 12:00:05 [w.py:1] KeyError: 'layers.5.qkv'\n",
        "worker/engine.log",
    )
    for order in ((head, worker), (worker, head)):
        (start,) = answer(capsys, "--nodes", *order, code=1)["starts"]
        cause = start["failure"]["cause"]
        assert (cause["node"], cause["line"], cause["rank"]) == ("worker", 3, "TP1")


def test_unknown_lines(log, capsys):
    data = answer(capsys, "--unknown", log(COLD + NEW_WORDING * 3))
    assert [u["line"] for u in data["unknown"]] == [19]
    assert answer(capsys, "--unknown", log(COLD))["unknown"] == []


def test_wrong_arguments(capsys):
    assert main([]) == 2
    assert "LOG" in capsys.readouterr().err
    assert main(["--engine", "vlm", "x"]) == 2
    assert "unknown engine 'vlm'; did you mean 'vllm'?" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "exit codes:" in capsys.readouterr().out


def test_for_people(log, capsys):
    path = log(COLD + traffic(40) + FAILED)
    assert main(["--unknown", path]) == 1
    text = capsys.readouterr().out
    assert f"{path}: 2 starts" in text
    assert "start 0 · vllm · lines 1-58 · ready (line 18)" in text
    assert "kv.tokens                292,522 tokens  (line 13)" in text
    assert "cache.prefix_hit_rate    1.0 % (line 28) … 4.0 % (line 58), 4 reports" in text
    assert "start 1 · vllm · lines 59-64 · FAILED" in text
    assert f"cause    {path}:64  " in text
    assert "compile cache  not reused" in text
    assert "sesame" not in text


def test_a_log_that_just_stops_says_so(log, capsys):
    assert main([log("".join(COLD.splitlines(keepends=True)[:6]))]) == 0
    text = capsys.readouterr().out
    assert "died silently or still running, last seen in" in text
    assert "failed in phase" not in text
    assert "ended in phase" in text


def test_warnings_are_apart_from_facts(log, capsys):
    warning = (
        "(EngineCore pid=9) WARNING 11-29 12:00:22 [b.py:1] Compiling model again due to a load failure from "
        "/c/rank_0_0/model, reason: Compile cache file corrupted.\n"
    )
    assert main([log(warning + COLD)]) == 0
    text = capsys.readouterr().out
    assert "artifact.missing (missing, stale, corrupt or defaulted): Compiling model again" in text


@pytest.mark.parametrize("asked", [["--json"], []])
@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("missing", None, "No such file or directory"),
        ("empty", b"", "empty"),
        ("cut.gz", gzip.compress(b"x" * 99, mtime=0)[:15], "end-of-stream"),
        ("bad.gz", b"\x1f\x8bxxxxxxxxxxxxxxxxxx", "gz"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path, capsys, asked, name, data, said):
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    assert main([*asked, str(path)]) == 3
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


def test_a_folder_cannot_be_read(tmp_path, capsys):
    assert main([str(tmp_path)]) == 3
    assert "Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_closed_standard_streams(log, monkeypatch, capsys, closed):
    monkeypatch.setattr(sys, closed, None)
    assert main(["-" if closed == "stdin" else log(COLD)]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_a_full_disk_is_said(log):
    argv = [sys.executable, "-m", "pytest_startup.cli", "explain", log(COLD)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "writing the answer: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_programs_logs_are_named_so(log, capsys):
    assert main([log("hello\nworld\n")]) == 3
    assert "nothing of an engine that is known here" in capsys.readouterr().out


def test_a_value_is_shown_with_what_it_is_of(log, capsys):
    lines = (
        "INFO 11-29 12:00:31 [k.py:1] Maximum concurrency for 8,192 tokens per request: 35.71x\n"
        "INFO 11-29 12:00:31 [k.py:1] Free memory on device (139.0/141.1 GiB) on startup. Desired GPU memory "
        "utilization is (0.9, 126.99 GiB).\n"
    )
    assert main([log(COLD + lines)]) == 0
    text = capsys.readouterr().out
    assert "35.71 x (8,192 tokens each)" in text
    assert "139.0 GiB (startup)" in text
