"""FlashInfer's record files: keys, metadata, seals, stores; on files that its own releases wrote."""

from __future__ import annotations

import json

import pytest
from helpers_caches import DATA, whole
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_startup.observe import autotune_records as ar
from pytest_startup.observe import cache_facts
from pytest_startup.observe.autotune_keys import Key, KeyRanks, KeySyntax, Word, parse_key, parse_value, render
from pytest_startup.observe.caches import snapshot

#: folder, file, parts of a key, extras of the MoE ops, rank of rank 1's file in its keys, seal
WRITTEN = [
    ("flashinfer-0.6.7", 0, 3, None, KeyRanks(), "absent"),
    ("flashinfer-0.6.13", 1, 4, 0, KeyRanks(), "absent"),
    ("flashinfer-0.6.18", 1, 4, 20, KeyRanks(1, 0, 2, 1), "valid"),
    ("flashinfer-0.7.2", 0, 4, 17, KeyRanks(tp_size=1, ep_size=2), "valid"),
    ("flashinfer-0.7.4", 1, 4, 17, KeyRanks(tp_size=1, ep_size=2), "valid"),
]


def parsed(folder, rank):
    name = f"autotune_configs_dp0_rank{rank}.json"
    return ar.parse_v1(name, (DATA / folder / name).read_bytes())


@pytest.mark.parametrize(("folder", "rank", "parts", "extras", "ranks", "seal"), WRITTEN)
def test_files_of_each_release(folder, rank, parts, extras, ranks, seal):
    file = parsed(folder, rank)
    assert (file.damage, file.marks, file.generation) == (None, (), seal)
    assert file.metadata["flashinfer_version"] == folder.rpartition("-")[2]
    assert file.metadata["gpu"] == "NVIDIA H200"
    assert len(file.records) == 42
    keys = [r.parsed for r in file.records]
    assert {k.parts for k in keys} == {parts}
    assert {None if k.extras is None else len(k.extras) for k in keys} == {extras}
    assert {k.ranks for k in keys} == {ranks}
    assert all(k.canonical for k in keys)
    assert {(k.op, k.runner) for k in keys} == {
        (op, "MoERunner") for op in ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
    }
    assert len({k.bucket for k in keys}) == 21
    assert bool(ranks) == (ranks.ep_rank is not None)


def test_the_file_of_a_real_h200():
    file = ar.parse_v1("autotune_configs.json", (DATA / "h200-0.26.0-autotune_configs.json").read_bytes())
    assert (len(file.records), file.generation, file.marks) == (42, "absent", ())
    assert file.metadata["flashinfer_version"] == "0.6.14"
    assert sorted(r.parsed.bucket for r in file.records if r.parsed.op.endswith("gemm1"))[:4] == [1, 2, 4, 8]


def test_release_0_7_4_keeps_how_it_chose():
    record = parsed("flashinfer-0.7.4", 0).records[0]
    assert record.rest[0] == ["cuda_graph_profile_replays", None, "l2_cache_policy", "hot"]
    assert set(record.rest[1]) == {"time_ms", "runner_up_ms", "margin", "candidates"}


@pytest.mark.parametrize(("library", "records", "ranked"), [("0.7.1", 84, True), ("0.7.4", 42, False)])
def test_the_managed_store_of_each_release(tmp_path, library, records, ranked):
    pack = json.loads((DATA / f"flashinfer-{library}-store.json").read_text())
    for path, text in pack.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    shot = snapshot("c", tmp_path)
    (fact,) = shot.facts
    (file,) = cache_facts.record_files(list(shot.facts), shot.tree)
    assert file.path == fact.detail["path"]
    assert (file.format, len(file.records), file.marks) == ("v2", records, ())
    assert file.metadata["flashinfer_version"] == library
    assert {bool(r.ranks) for r in file.records} == {ranked}


STORE = json.loads((DATA / "flashinfer-0.7.4-store.json").read_text())
ENTRY = next(p for p in STORE if "/entries/" in p)
MANIFEST = next(p for p in STORE if p.endswith("manifest.json"))
FOLDER = MANIFEST.rpartition("/")[0]
NAME = ENTRY.rpartition("/")[2]


def changed(path, **members):
    return {path: json.dumps({**json.loads(STORE[path]), **members}, indent=2, sort_keys=True)}


@pytest.mark.parametrize(
    ("change", "mark", "left"),
    [
        (changed(ENTRY, key="other"), "its name is not the hash of its key; FlashInfer never finds it", 41),
        ({ENTRY: ""}, "empty; FlashInfer takes it for a miss", 41),
        ({ENTRY: '{"key": 1}'}, "no key, runner or tactic; FlashInfer takes it for a miss", 41),
        ({ENTRY: STORE[ENTRY] + "\n"}, "not laid out as FlashInfer writes it", 42),
        ({ENTRY: "[]"}, "not a JSON object; FlashInfer takes it for a miss", 41),
    ],
)
def test_a_changed_entry_of_a_store(change, mark, left):
    files = {p: t.encode() for p, t in {**STORE, **change}.items()}
    file = ar.parse_store(FOLDER, files)
    assert f"entries/{NAME}: {mark}" in file.marks
    assert len(file.records) == left


def test_a_renamed_entry_and_a_foreign_manifest():
    moved = {(f"{FOLDER}/entries/{'0' * 24}.json" if p == ENTRY else p): t.encode() for p, t in STORE.items()}
    assert any("its name is not the hash of its key" in m for m in ar.parse_store(FOLDER, moved).marks)
    files = {p: t.encode() for p, t in {**STORE, **changed(MANIFEST, gpu="NVIDIA GB10")}.items()}
    assert any("does not belong to this folder" in m for m in ar.parse_store(FOLDER, files).marks)
    without = {p: t.encode() for p, t in STORE.items() if p != MANIFEST}
    assert "manifest.json: missing or unreadable" in ar.parse_store(FOLDER, without).marks


ZEROS = "0" * 64
WORDS = (Word("torch.float8_e4m3fn"), Word("<Act.Swiglu: 3>"), Word("device(type)"))


@pytest.mark.parametrize(
    ("path", "owner", "library", "arch", "key_hash"),
    [
        ("0.6.18/90a/" + "ab" * 32 + "/autotune_configs.json", ar.Owner(), "0.6.18", "90a", "ab" * 32),
        (f"0.6.18rc2/103a/{ZEROS}/autotune_configs_dp1_rank3.json", ar.Owner(3, dp=1), "0.6.18rc2", "103a", ZEROS),
        (f"0.7.2/sm100/{ZEROS[:16]}/rank_tp1_pp0_dp2.json", ar.Owner(tp=1, pp=0, dp=2), "0.7.2", "100", ZEROS[:16]),
        ("autotune/rank_tp0_pp0_dp0_gpuGPU-12ab.json", ar.Owner(tp=0, pp=0, dp=0), None, None, None),
        ("autotune/rank7.json", ar.Owner(rank=7), None, None, None),
        ("autotune_config.json", ar.Owner(), None, None, None),
    ],
)  # fmt: skip
def test_what_a_path_says(path, owner, library, arch, key_hash):
    place = ar.read_place(path)
    assert (place.owner, place.library, place.arch, place.key_hash) == (owner, library, arch, key_hash)
    assert ar.is_record_file(path)


@pytest.mark.parametrize(
    "path", ["a/.autotuner_x.json", "cache_key_factors.json", "rank0.json", "modelinfos/x.json", "v2/xyz/manifest.json"]
)
def test_what_is_no_record_file(path):
    assert not ar.is_record_file(path)


def test_in_an_autotune_cache_the_content_tells(tmp_path):
    """FlashInfer's other tables (sparse MLA, PCIe collectives) have another form and are not judged."""
    (tmp_path / "mine.json").write_text(json.dumps(whole("flashinfer-0.6.18-leader")))
    (tmp_path / "sparse_mla_sm120_decode_dsv4.json").write_text('{"timing_protocol": 3, "devices": {}}')
    (tmp_path / "notes.txt").write_text("x")
    assert [f.detail["path"] for f in snapshot("c", tmp_path, kind="autotune").facts] == ["mine.json"]
    assert snapshot("c", tmp_path, kind="other").facts == ()


GOOD = (
    "('trtllm::fused_moe::gemm1', 'MoERunner', ((128, 64), (4, 96, 64), (0,), (4, 64, 48), (0,)), (torch.bfloat16,"
    " torch.bfloat16, torch.bfloat16, 2, 1, 0, 2, 1, 1, 0, False, False, False, False, False, False, False, 3, False,"
    " True))"
)


def test_a_key_taken_apart():
    key = parse_key(GOOD)
    assert (key.op, key.runner, key.bucket, key.parts) == ("trtllm::fused_moe::gemm1", "MoERunner", 128, 4)
    assert key.ranks == KeyRanks(1, 0, 2, 1)
    assert key.name() == "trtllm::fused_moe::gemm1 bucket 128"
    other = parse_key(GOOD.replace("2, 1, 1, 0, False", "2, 0, 1, 0, False"))
    assert other.ranks.ep_rank == 0
    assert key.without_ranks() == other.without_ranks()
    assert key.without_ranks() != parse_key(GOOD.replace("((128,", "((64,")).without_ranks()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("()", ()),
        ("(1,)", (1,)),
        ("(-1, 2.5, 1e-05, None, True, False)", (-1, 2.5, 1e-05, None, True, False)),
        ("('a', \"it's\", 'tab\\t')", ("a", "it's", "tab\t")),
        ("(torch.float8_e4m3fn, <Act.Swiglu: 3>, device(type))", WORDS),
        ("([1, (2,)], [])", ([1, (2,)], [])),
    ],
)  # fmt: skip
def test_printed_values_are_read_and_printed_again(text, value):
    assert parse_value(text) == value
    assert render(parse_value(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not one value"),
        ("(1, 2", "cut short"),
        ("(1, 2))", r"character 7: unexpected '\)'"),
        ("(1 2)", "character 4: ',' expected before '2'"),
        ("(1,, 2)", "character 4: unexpected ','"),
        ("(1)", "parentheses around one value make no tuple"),
        ("(1, 2]", "character 6: unexpected ']'"),
        ("(__import__('os').system('x'))", "unexpected"),
        ("(1 + 1, 2, 3)", "unexpected"),
        ("(" * 99, "nested deeper than 24"),
        ("(" + "9" * 50 + ",)", "a number of 50 digits"),
        ("x" * 70_000, "longer than 65536 characters"),
    ],
)
def test_what_is_no_printed_value(text, why):
    with pytest.raises(KeySyntax, match=why):
        parse_value(text)


@pytest.mark.parametrize("text", ["('a', 'b')", "[1, 2, 3]", "(1, 'b', ())", "('a', 'b', 'c')", "('a', 'b', (), 5)"])
def test_what_is_a_value_but_no_key(text):
    with pytest.raises(KeySyntax):
        parse_key(text)


scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.text("abc:._' \"", max_size=8))


def nested(inner):
    return st.one_of(st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple))


values = st.recursive(scalars, nested, max_leaves=12)


@settings(deadline=None)
@given(values)
def test_everything_that_python_prints_is_read_back(value):
    assert parse_value(str((value, 1)))[0] == value


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_other_text_is_a_syntax_error_and_nothing_else(text):
    try:
        value = parse_value(text)
    except KeySyntax:
        return
    assert isinstance(render(value), str)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_parsed_without_an_exception(data):
    file = ar.parse_v1("autotune_configs.json", data)
    assert file.damage or isinstance(file.records, tuple)
    assert cache_facts.unpack(file.path, cache_facts.pack(file)).damage == file.damage


@pytest.mark.parametrize("folder", sorted(p.name for p in DATA.glob("flashinfer-*") if p.is_dir()))
def test_the_compact_form_loses_nothing(folder):
    for path in sorted((DATA / folder).glob("*.json")):
        file = ar.parse_v1(path.name, path.read_bytes())
        packed = json.loads(json.dumps(cache_facts.pack(file)))
        again = cache_facts.unpack(path.name, packed)
        assert sorted(again.records, key=lambda r: r.key) == sorted(file.records, key=lambda r: r.key)
        assert (again.metadata, again.generation, again.marks) == (file.metadata, file.generation, file.marks)


def test_the_compact_form_is_compact():
    """A record keeps 42 tuning records in two groups, a quarter of the file."""
    data = whole("flashinfer-0.6.18-leader")
    size = len(json.dumps(cache_facts.pack(ar.parse_v1("a.json", json.dumps(data, indent=2).encode()))))
    assert size < len(json.dumps(data)) / 4


@settings(deadline=None)
@given(st.text("(),'0123 a", max_size=30), st.integers(0, 9))
def test_keys_of_any_form_survive_the_compact_form(text, tactic):
    file = ar.RecordFile("p", "v1", records=(ar.TuningRecord(text, "R", tactic),))
    assert cache_facts.unpack("p", cache_facts.pack(file)).records == file.records


def test_sealing_is_flashinfers_own_recipe():
    data = whole("flashinfer-0.6.18-shared")
    assert ar.generation_of(data) == data["_generation"]


def test_nothing_is_evaluated():
    with pytest.raises(KeySyntax):
        parse_key("(print('x'), 'b', (), ())")
    assert isinstance(parse_key("('a', 'b', (torch.bfloat16,), ())"), Key)
