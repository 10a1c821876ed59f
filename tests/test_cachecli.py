"""``pytest-startup cache``: from where a user stands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from helpers_caches import DATA, place, seal, whole, write

from pytest_startup.cli import main

NAME = "autotune_configs.json"


@pytest.fixture
def both(tmp_path):
    return write(tmp_path / "both", "0.6.18", {NAME: whole("flashinfer-0.6.18-shared")})


@pytest.fixture
def leader(tmp_path):
    return write(tmp_path / "leader", "0.6.18", {NAME: whole("flashinfer-0.6.18-leader")})


def test_a_good_cache(both, capsys):
    assert main(["cache", str(both), "--ranks", "2", "--records", "42"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{both}: 1 files, 2")
    assert f"records    {place('0.6.18')}/{NAME}: 84 records, of all ranks, flashinfer_version 0.6.18" in out
    assert "rank 0       autotune         42      42     42\n" in out
    assert "rank 1       autotune         42      42     42\n" in out
    assert "FOUND" not in out
    assert "UNKNOWN (rank 1): whether these records were measured on this rank" in out


def test_the_second_rank_is_missed_without_being_told_how_many_there_are(leader, capsys):
    """The keys say ep_size 2: one rank's records are half of it."""
    assert main(["cache", str(leader)]) == 1
    out = capsys.readouterr().out
    assert "FOUND rank-missing: rank 1 has no records of its own; rank 0 has 42" in out
    assert "  expected  own records on every rank, ops and buckets alike" in out
    assert "  observed  rank 0: 42 records" in out
    assert f"  evidence  cache/{place('0.6.18')}/{NAME}  42 records, none for rank 1" in out


def test_a_folder_without_the_records_that_are_asked_for(tmp_path, capsys):
    assert main(["cache", str(tmp_path), "--ranks", "2", "--records", "42"]) == 1
    out = capsys.readouterr().out
    assert "FOUND rank-missing: rank 0 has no records of its own" in out
    assert "FOUND rank-missing: rank 1 has no records of its own" in out
    assert "  expected  42 own records per rank" in out


def test_json_has_every_record_and_finding(leader, capsys):
    assert main(["cache", str(leader), "--json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert (out["schema"], out["exists"], out["tiers"]["autotune"]["files"]) == (1, True, 1)
    (file,) = out["record_files"]
    assert (file["library"], file["arch"], file["generation"], len(file["records"])) == ("0.6.18", "90a", "valid", 42)
    assert {(r["ep_rank"], r["runner"]) for r in file["records"]} == {(0, "MoERunner")}
    assert [(r["rank"], r["found"], r["own"]) for r in out["rows"]] == [("rank 0", 42, 42), ("rank 1", 0, 0)]
    assert [f["kind"] for f in out["findings"]] == ["rank-missing"]


def test_two_folders_down_to_the_record(both, leader, capsys):
    assert main(["cache", str(both), "--against", str(leader), "--json"]) == 1
    change = json.loads(capsys.readouterr().out)["against"]
    assert change["changed"] == [f"{place('0.6.18')}/{NAME}"]
    assert len(change["records"]["only_here"]) == 42
    assert change["records"]["only_there"] == []
    assert main(["cache", str(both), "--against", str(leader)]) == 1
    out = capsys.readouterr().out
    assert f"  changed      {place('0.6.18')}/{NAME}" in out
    assert "  record here  and 30 more" in out


def test_one_other_tactic_is_shown_with_both_values(both, tmp_path, capsys):
    data = whole("flashinfer-0.6.18-shared")
    key = next(k for k in data if k.startswith("("))
    was = data[key][1]
    data[key][1] = 23 - was
    data["_metadata"]["gpu"] = "NVIDIA H100 80GB HBM3"
    other = write(tmp_path / "other", "0.6.18", {NAME: seal(data)})
    assert main(["cache", str(both), "--against", str(other)]) == 1
    out = capsys.readouterr().out
    assert f"{key}: {was} → {23 - was}" in out
    assert "gpu: NVIDIA H200 → NVIDIA H100 80GB HBM3" in out


def test_equal_folders_are_equal(both, tmp_path, capsys):
    shutil.copytree(both, tmp_path / "copy")
    assert main(["cache", str(both), "--against", str(tmp_path / "copy")]) == 0
    assert "the same 1 files" in capsys.readouterr().out


def test_an_h200_cache_below_any_root(tmp_path, capsys):
    shutil.copy(DATA / "h200-0.26.0-autotune_configs.json", tmp_path / NAME)
    assert main(["cache", str(tmp_path), "--records", "42"]) == 0
    assert (
        "42 records, of all ranks, flashinfer_version 0.6.14, cuda_version 13.0, gpu NVIDIA H200"
        in capsys.readouterr().out
    )


def test_compiled_artifacts_per_rank(tmp_path, capsys):
    for rank in (0, 1):
        folder = tmp_path / f"torch_compile_cache/torch_aot_compile/{'9' * 64}/rank_{rank}_0"
        folder.mkdir(parents=True)
        (folder / "model").write_bytes(f"model of rank {rank}".encode())
    assert main(["cache", str(tmp_path)]) == 0
    assert "rank 1       aot               1       1      1" in capsys.readouterr().out
    (tmp_path / f"torch_compile_cache/torch_aot_compile/{'9' * 64}/rank_1_0/model").write_bytes(b"")
    assert main(["cache", str(tmp_path)]) == 1
    assert "FOUND artifact-damaged: torch_compile_cache/torch_aot_compile/" in capsys.readouterr().out


def test_an_empty_folder_is_nothing_wrong(tmp_path, capsys):
    assert main(["cache", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 0 files, 0 B\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "none", "no such folder (its parent {parent} exists)"),
        (lambda p: p / "none/deeper", "no such folder"),
        (lambda p: p / "file", "a folder is expected, this is a file"),
    ],
)
def test_folders_that_can_not_be_read(tmp_path, capsys, make, message):
    (tmp_path / "file").write_text("x")
    name = make(tmp_path)
    assert main(["cache", str(name)]) == 3
    shown = capsys.readouterr()
    assert shown.err == f"pytest-startup cache: {name}: {message.format(parent=tmp_path)}\n"
    assert shown.out == ""
    assert main(["cache", str(tmp_path), "--against", str(name)]) == 3


@pytest.mark.parametrize("args", [[], ["a", "b"], ["a", "--ranks", "0"], ["a", "--records", "x"], ["a", "--kind", "k"]])
def test_wrong_arguments(args, capsys):
    assert main(["cache", *args]) == 2
    assert "usage: pytest-startup cache" in capsys.readouterr().err


def test_what_a_wrong_number_is_told(capsys):
    main(["cache", "a", "--ranks", "two"])
    assert "argument --ranks: a whole number from 1 is expected, not 'two'" in capsys.readouterr().err


def test_help_names_the_exit_codes(capsys):
    assert main(["cache", "--help"]) == 0
    assert "1  something was found, or the folders differ" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["cache", "--json", DATA], ["schema", "profile"], ["init"]])
def test_a_reader_that_has_seen_enough_is_no_error(command):
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "pytest_startup.cli", *map(str, command)]
    done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
