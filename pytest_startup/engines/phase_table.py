"""The lines that open phases, of all engines, in the order in which they are tried."""

from __future__ import annotations

from pytest_startup.engines import sglang_phases, vllm_phases
from pytest_startup.engines.phases import OpenerTable

OPENERS = (*vllm_phases.OPENERS, *sglang_phases.OPENERS)
TABLE = OpenerTable(OPENERS)
