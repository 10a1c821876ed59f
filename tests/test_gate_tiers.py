"""Long sessions through the gate: an offload tier that works, has nothing to do, or fails quietly; and a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers_launch import isolate
from helpers_live import Site, live, quick, replayed, schema_problems
from helpers_records import text_of

SESSIONS = "tiers: {{external: 90%, sessions: {{count: 4, prompt_tokens: 256, concurrency: 1}}}}\n  quality"
ROOM = {"kv_tokens": 600, "replace": {"262,144": "600"}}  # for two of the four sessions
HELD = "the sessions hold 1,152 tokens together, the engine's own cache has room for"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    isolate(tmp_path, monkeypatch)
    return Site(tmp_path)


def profile_text() -> str:
    """The reference start alone, and sessions."""
    text = quick().replace("restarts: [{{kind: process}}]", "restarts: []")
    return text.replace("quality", SESSIONS, 1)


@pytest.mark.parametrize(
    ("how", "outcome", "words"),
    [
        ({**ROOM, "tier": "works"}, "passed", ""),
        (
            {"kv_tokens": 262_144, "tier": "works"},
            "not exercised",
            f"{HELD} 262,144: nothing had to come back; more sessions, longer prompts or a smaller KV cache",
        ),
        ({**ROOM, "tier": "quiet"}, "not exercised", f"{HELD} 600: the connector failed quietly"),
        ({**ROOM, "tier": "idle"}, "not exercised", "was never asked when the sessions came back"),
    ],
    ids=["works", "the own cache is large enough", "gives nothing", "is never asked"],
)
def test_sessions_reach_an_offload_tier(site: Site, how: dict[str, Any], outcome: str, words: str) -> None:
    site.write(how, text=profile_text())
    run = live(site)
    verdict = run.verdicts["reference::tiers"]
    assert not isinstance(verdict, str)
    assert verdict.outcome.value == outcome, verdict
    assert words in text_of(verdict)
    assert "reference::kv" not in run.red()
    assert schema_problems(run) == []
    assert run.folder is not None
    again = replayed(site, run.folder)
    assert (again.verdicts, again.records) == (run.verdicts, run.records)


def test_sessions_that_the_model_has_no_room_for_are_red_and_a_changed_profile_is_noticed(site: Site) -> None:
    text = profile_text()
    site.write({}, text=text.replace("prompt_tokens: 256", "prompt_tokens: 2000"))
    run = live(site)
    verdict = run.verdicts["reference::tiers"]
    assert not isinstance(verdict, str)
    said = text_of(verdict)
    assert "4 of 4 requests of the sessions failed" in said
    assert "This model's maximum context length is 1024 tokens, and the prompt has 2000." in said
    assert run.records["reference"].notes[0].startswith("sessions: all 4 requests of turn 1 failed: HTTP 400")
    assert run.folder is not None
    site.write({}, text=text)
    again = replayed(site, run.folder).verdicts["reference::tiers"]
    assert not isinstance(again, str)
    assert again.outcome.value == "not exercised"
    assert "other sessions were run than the profile has" in text_of(again)
