"""Which engine a log line is of, and which lines begin a start."""

from __future__ import annotations

import re

from pytest_startup.engines.lines import Line

#: Literals that only one engine prints, in the order in which they are tried.
SIGNS: tuple[tuple[str, str], ...] = (
    ("server_args=ServerArgs(", "sglang"),
    ("server_args={", "sglang"),
    ("SGLang Version", "sglang"),
    ("sglang/srt/", "sglang"),
    ("sglang.launch_server", "sglang"),
    ("fired up and ready to roll", "sglang"),
    ("vLLM API server version", "vllm"),
    ("vLLM server version", "vllm"),
    ("Starting vLLM v", "vllm"),
    ("V1 LLM engine (v", "vllm"),
    ("V0 LLM engine (v", "vllm"),
    ("Initializing an LLM engine (v", "vllm"),
    ("(EngineCore", "vllm"),
    ("(APIServer pid=", "vllm"),
    ("(Worker_TP", "vllm"),
    ("vllm/v1/", "vllm"),
    ("vLLM's torch.compile", "vllm"),
)
_SIGN = re.compile("|".join(re.escape(sign) for sign, _ in SIGNS))
_ENGINE = dict(SIGNS)

#: Stages of a launch, in order: the banner, the arguments, the engine core.
BANNER, ARGUMENTS, CORE = 1, 2, 3
_LAUNCH = re.compile(
    r"(?P<banner>vLLM (?:OpenAI )?(?:API|api) server version |vLLM server version |vLLM Version |SGLang Version "
    r"|^Starting vLLM v\d|[█▀▄]\s+version \d+\.\d)"
    r"|(?P<args>non-default args: |(?:^|\s)args: Namespace\(|server_args=(?:ServerArgs\(|\{)|Unsupported argument: )"
    r"|(?P<core>Initializing an? (?:V[01] )?LLM engine (?:\(v|with config))"
)


def engine_of(text: str) -> str | None:
    """``vllm``, ``sglang`` or None where the text does not tell."""
    match = _SIGN.search(text)
    return _ENGINE[match.group(0)] if match else None


def launch_stage(line: Line) -> int:
    """1 banner, 2 arguments, 3 engine core begins; 0 for any other line."""
    match = _LAUNCH.search(line.message)
    if not match:
        return 0
    return BANNER if match.group("banner") else ARGUMENTS if match.group("args") else CORE
