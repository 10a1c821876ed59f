"""The maker of the example's engine: what it refuses before a download, what a failed step says, what it keeps."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[1] / "examples" / "cpu-vllm" / "make_engine.py"


@pytest.fixture
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_engine", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(maker: ModuleType, monkeypatch: pytest.MonkeyPatch, into: Path, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["make_engine.py", "--into", str(into), *args])
    code: int = maker.main()
    return code


def test_without_a_compiler_nothing_is_downloaded(
    maker: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(maker.shutil, "which", lambda _: None)
    monkeypatch.setattr(maker, "run", lambda *_: pytest.fail("something was run"))
    assert made(maker, monkeypatch, tmp_path / "engine") == 1
    assert capsys.readouterr().err == (
        "[engine] no C++ compiler found: torch.compile needs one (Debian, Ubuntu: apt-get install g++)\n"
    )
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64")])
def test_another_machine_is_refused(maker: ModuleType, monkeypatch: Any, system: str, machine: str) -> None:
    monkeypatch.setattr(maker.sys, "platform", system)
    monkeypatch.setattr(maker.platform, "machine", lambda: machine)
    with pytest.raises(maker.Trouble, match=rf"needs Linux on x86_64, this is {system} on {machine}"):
        maker.check_machine()


@pytest.mark.parametrize(
    ("needs", "named"),
    [(["numpy", "nvidia-cublas-cu13==13.0 ; sys_platform == 'linux'"], "nvidia-cublas-cu13"), ([], "")],
)
def test_a_cuda_build_of_torch_is_refused_before_it_is_downloaded(
    maker: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needs: list[str], named: str
) -> None:
    report = tmp_path / "torch.json"

    def run(_: str, argv: list[str]) -> str:
        assert "--dry-run" in argv
        report.write_text(json.dumps({"install": [{"metadata": {"requires_dist": needs}}]}))
        return ""

    monkeypatch.setattr(maker, "run", run)
    if not named:
        maker.check_torch(["pip"], [], report)
        return
    with pytest.raises(maker.Trouble) as refused:
        maker.check_torch(["pip"], [], report)
    assert f"offers a CUDA build of torch==2.13.0 (it needs {named}" in str(refused.value)
    assert "make_engine.py --torch-index URL" in str(refused.value)
    assert "https://download.pytorch.org/whl/cpu" in str(refused.value)


def test_a_failed_download_shows_the_command_and_the_end_of_what_it_said(
    maker: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = maker.run
    said = "import sys; print('\\n'.join(f'line {n}' for n in range(30))); print('no route to host'); sys.exit(1)"

    def run(title: str, argv: list[str]) -> str:
        out: str = real(title, [sys.executable, "-c", said if "--dry-run" in argv else ""])
        return out

    monkeypatch.setattr(maker, "run", run)
    monkeypatch.setattr(maker, "check_machine", lambda: None)
    assert made(maker, monkeypatch, tmp_path) == 1
    shown = capsys.readouterr()
    assert "[engine] making a virtual environment\n" in shown.out
    assert "[engine] asking the package index for torch==2.13.0: failed with exit code 1" in shown.err
    assert "line 20\n" in shown.err
    assert "line 5\n" not in shown.err
    assert shown.err.endswith("no route to host\n")
    assert "Traceback" not in shown.err


def test_what_is_finished_is_not_done_again(maker: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    titles: list[str] = []

    def run(title: str, _: list[str]) -> str:
        titles.append(title)
        return "0.31.0\n"

    monkeypatch.setattr(maker, "run", run)
    monkeypatch.setattr(maker, "check_machine", lambda: None)
    monkeypatch.setattr(maker, "check_torch", lambda *_: None)
    assert made(maker, monkeypatch, tmp_path) == 0
    assert [t for t in titles if t.startswith("installing vLLM 0.31.0")]
    titles.clear()
    assert made(maker, monkeypatch, tmp_path, "--models", "facts,moe") == 0
    assert titles == ["making the model moe", "asking vLLM for its version"]


def test_a_second_build_waits_for_the_first(
    maker: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(maker, "check_machine", lambda: None)
    built = threading.Event()
    monkeypatch.setattr(maker, "steps_of", lambda *_: built.set())
    with maker.alone(tmp_path):
        second = threading.Thread(target=maker.build, args=(tmp_path, [], ["facts"]))
        second.start()
        said = ""
        until = time.monotonic() + 30
        while "another build goes on" not in said and time.monotonic() < until:
            said += "".join(capsys.readouterr())
        assert f"another build goes on in {tmp_path}; waiting for its end" in said
        assert not built.is_set()
    second.join(30)
    assert built.is_set()


def test_an_unknown_model_is_a_usage_error(
    maker: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        made(maker, monkeypatch, tmp_path, "--models", "fact")
    assert ended.value.code == 2
    assert "unknown model 'fact', expected one of facts, dense, moe, mla" in capsys.readouterr().err
