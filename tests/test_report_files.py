"""The file reports: JUnit, JSON, HTML, CSV, GitHub; whatever an engine printed can't break them."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers_gate import PROFILE, run, use
from hypothesis import given
from hypothesis import strategies as st

import pytest_startup.report.annotations as github
from pytest_startup.report import csv_report, html, json_report
from pytest_startup.report.results import ItemResult, ProfileResult, StartRow, to_wire

NASTY = "\x1b[31m<script>alert(1)</script>\x00 & \"q\" 'a' %0A::error::x, =1+1 ``` ünï \ud7ff ]]>"


def result_of(text: str = "it differs", outcome: str = "failed") -> ProfileResult:
    expected = [("reference", "kv"), ("restart-1", "kv")]
    result = ProfileResult("a/x.yaml", "demo", {"engine": "vllm", "version": text}, "/e", expected, expected)
    rows = [
        StartRow("reference", "process", 10.0, {"weights": 3.0, "compile": 4.0}, "4,096", {"8": 81.0}),
        StartRow("restart-1", "process", None, {}, None, {}, failed=text),
    ]
    for item in (ItemResult("reference", "kv", "passed"), ItemResult("restart-1", "kv", outcome, text, text, line=7)):
        result.add({"profile": "a/x.yaml", **to_wire(item, rows, result.identity, "/e")})
    return result


def test_junit_has_identity_as_suite_and_numbers_as_item_properties(pytester: pytest.Pytester) -> None:
    use(pytester, {"verdicts": {"restart-1::kv": "failed", "restart-2::throughput": "not observable"}})
    run(pytester, "--junitxml=out.xml")
    tree = ET.parse(pytester.path / "out.xml")  # noqa: S314 - our own file
    suite = {p.get("name"): p.get("value") for p in tree.findall("./testsuite/properties/property")}
    assert suite["startup.engine"] == "vllm"
    assert suite["startup.version"] == "0.31.0"
    assert suite["startup.status"] == "REJECTED"
    assert re.fullmatch("[0-9a-f]{64}", suite["startup.profile-sha256"] or "")
    cases = {f"{c.get('classname')}::{c.get('name')}": c for c in tree.iter("testcase")}
    case = next(c for name, c in cases.items() if name.endswith("restart-1::kv"))
    assert [(p.get("name"), p.get("value")) for p in case.iter("property")] == [("startup.kv number", "41")]
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "kv is not as it was"
    assert (failure.text or "").splitlines()[1] == "  expected  4,096 tokens     profile.yaml:11"


def test_junit_survives_control_characters(pytester: pytest.Pytester) -> None:
    use(pytester, {"verdicts": {"restart-1::kv": "failed"}})
    text = pytester.path.joinpath("conftest.py").read_text()
    pytester.path.joinpath("conftest.py").write_text(
        text + "\nimport helpers_gate\nfrom dataclasses import replace\n_red = helpers_gate.red\n"
        "def red(*args):\n    v = _red(*args)\n    f = replace(v.findings[0], summary='\\x00\\x1b[31m<a> & ]]>')\n"
        "    return replace(v, findings=(f,), numbers={'a<b\\x01': '\\x02'})\n"
        "@pytest.fixture\ndef nothing(): pass\n"
        "def pytest_sessionstart(): helpers_gate.red = red\n"
        "def pytest_sessionfinish(): helpers_gate.red = _red\n"
    )
    result = run(pytester, "--junitxml=out.xml", "--startup-report", "html=out.html")
    tree = ET.parse(pytester.path / "out.xml")  # noqa: S314 - our own file
    messages = [f.get("message") for f in tree.iter("failure")]
    assert messages == ["\\x00\\x1b[31m<a> & ]]>"]
    assert "\x1b" not in result.stdout.str()
    assert "<a>" not in pytester.path.joinpath("out.html").read_text()


def test_all_reports_of_a_run(pytester: pytest.Pytester) -> None:
    use(pytester, {"verdicts": {"restart-1::kv": "failed"}})
    args = [a for kind in ("json", "html", "csv") for a in ("--startup-report", f"{kind}=out/r.{kind}")]
    result = run(pytester, *args)
    result.stdout.fnmatch_lines(["report in *out/r.json", "report in *out/r.html", "report in *out/r.csv"])
    report = json.loads(pytester.path.joinpath("out/r.json").read_text())
    (profile,) = report["profiles"]
    assert profile["status"] == "REJECTED"
    assert profile["counts"]["failed"] == 1
    assert [r["name"] for r in profile["starts"]] == ["reference", "restart-1", "restart-2"]
    assert profile["starts"][0]["phases"] == {"weights": 4.5}
    rows = list(csv.DictReader(io.StringIO(pytester.path.joinpath("out/r.csv").read_text())))
    assert [(r["start"], r["status"], r["KV tokens"], r["tok/s c8"]) for r in rows] == [
        ("reference", "ok", "4096", "81.000"),
        ("restart-1", "rejected", "4096", "81.000"),
        ("restart-2", "ok", "4096", "81.000"),
    ]


def test_the_reason_of_a_waiver_stands_in_every_report(pytester: pytest.Pytester) -> None:
    use(
        pytester,
        {"verdicts": {"restart-1::kv": "not observable"}},
        f"{PROFILE}waive: [{{check: kv, reason: no meter}}]",
    )
    args = [a for kind in ("json", "html", "csv") for a in ("--startup-report", f"{kind}=r.{kind}")]
    run(pytester, *args, "--junitxml=r.xml").stdout.fnmatch_lines(
        ["waived    kv: not observable (restart-1): no meter"]
    )
    for kind in ("json", "html", "csv", "xml"):
        assert "no meter" in pytester.path.joinpath(f"r.{kind}").read_text(), kind


def test_a_report_that_cannot_be_written_changes_no_verdict(pytester: pytest.Pytester) -> None:
    use(pytester)
    pytester.path.joinpath("file").write_text("")
    result = run(pytester, "--startup-report", "json=file/r.json")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["report json=*file/r.json was not written: *Error: *", "ACCEPTED*"])


class Collect(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [v or "" for k, v in attrs if k in ("href", "src", "onload", "onerror")]


def test_html_is_self_contained_and_escapes_everything() -> None:
    text = html.document([result_of(NASTY)])
    parser = Collect()
    parser.feed(text)
    assert "script" not in parser.tags
    assert parser.links == []
    assert "://" not in text
    assert "\x00" not in text
    assert "&lt;script&gt;" in text
    assert {"table", "svg", "pre"} <= parser.tags


@given(st.text())
def test_html_never_lets_text_become_markup(text: str) -> None:
    plain, parser = Collect(), Collect()
    plain.feed(html.document([result_of("x")]))
    parser.feed(html.document([result_of(text or "x")]))
    assert parser.tags <= plain.tags
    assert parser.links == []


@given(st.text())
def test_csv_has_one_row_per_start_and_no_formula(text: str) -> None:
    rows = csv_report.table([result_of(text)])
    file = io.StringIO(newline="")
    csv.writer(file).writerows(rows)
    file.seek(0)
    if "\x00" not in text:
        assert list(csv.reader(file)) == rows
    assert len(rows) == 3
    assert not any(c.startswith(csv_report.FORMULA) for row in rows for c in row)


def test_csv_leaves_what_was_not_seen_empty() -> None:
    head, _, row = csv_report.table([result_of("boom")])
    cells = dict(zip(head, row, strict=True))
    assert cells["weights (s)"] == cells["ready (s)"] == cells["KV tokens"] == cells["tok/s c8"] == ""
    assert cells["status"] == "failed"


@pytest.mark.parametrize(
    ("workspace", "root", "below"),
    [
        ("/builds/repo", "/builds/repo/serving/gates", "serving/gates/"),
        ("/builds/repo", "/builds/repo", ""),
        ("/other", "/builds/repo/serving", ""),
        ("", "/builds/repo/serving", ""),
    ],
)
def test_annotations_are_placed_in_the_checkout(workspace: str, root: str, below: str) -> None:
    assert github.below_workspace({"GITHUB_WORKSPACE": workspace}, Path(root)) == below


@given(st.text(), st.text())
def test_a_workflow_command_is_one_line_whatever_it_says(title: str, message: str) -> None:
    line = github.command("error", "a.yaml", 3, title, message)
    assert "\n" not in line
    assert "\r" not in line
    head, _, rest = line.removeprefix("::error ").partition("::")
    assert head.startswith("file=a.yaml,line=3,title=")
    assert head.count(",") == 2
    decoded = rest.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
    assert decoded == message


def test_annotations_name_profile_line_and_tell_a_failed_start_once(pytester: pytest.Pytester) -> None:
    use(pytester, {"fails": "restart-1", "verdicts": {"reference::kv": "failed"}})
    summary = pytester.path / "summary.md"
    result = run(pytester, env={"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    lines = [line for line in result.outlines if line.startswith("::")]
    head, _, message = lines[0].partition("kv::")
    assert head == "::error file=profile.yaml,line=11,title=demo reference%3A "
    assert message.startswith(
        "kv is not as it was%0A  expected  4,096 tokens     profile.yaml:11%0A  observed  TP0: 4,"
    )
    assert len(lines) == 3
    text = summary.read_text()
    assert text.startswith("### demo: REJECTED\n")
    assert "reference     4.5s  12.5s      4,096      81.0" in text
    assert not any(line.startswith("::") for line in run(pytester).outlines)


@given(st.text())
def test_the_step_summary_fences_what_engines_print(text: str) -> None:
    summary = github.step_summary([result_of(text.replace("\r", "") + "\n```\n<img>")])
    fences = re.findall(r"^(`{3,})$", summary, re.MULTILINE)
    assert max(len(f) for f in fences) >= 4


def test_json_report_is_what_the_results_are() -> None:
    (one,) = json_report.document([result_of()])["profiles"]
    assert one["missing"] == []
    assert one["checks"][1]["line"] == 7
    assert json.loads(json.dumps(one)) == one or one["checks"][0]["ranks"] == ()
