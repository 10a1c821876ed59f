"""The lines that open phases, of all engines, in the order in which they are tried."""

from __future__ import annotations

from pytest_startup.engines import sglang_phases, vllm_phases
from pytest_startup.engines.phases import Opener, OpenerTable

OPENERS = (*vllm_phases.OPENERS, *sglang_phases.OPENERS)
TABLE = OpenerTable(OPENERS)
#: Not a wording: what shows that an engine is in use (``anchors.in_use``), or answers, opens this phase for all of it.
SERVING = Opener("vllm", "serving", "", "", "", scope="engine")
