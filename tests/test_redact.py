"""Secrets never reach a file: text, JSON and streams, and what must stay readable."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.redact import MASK, Redactor, holds_token, may_name_secret, names_secret

TOKEN = "hf_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY"
KEY = "sk-" + "proj-0123456789abcdefghij"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"loading with {TOKEN} now", f"loading with {MASK} now"),
        (f"key {KEY}, next", f"key {MASK}, next"),
        ("Authorization: Bearer abc.def-123", f"Authorization: Bearer {MASK}"),
        ("{'authorization': 'Basic dXNlcjpw'}", f"{{'authorization': 'Basic {MASK}'}}"),
        ("curl -H 'Authorization: tok123'", f"curl -H 'Authorization: {MASK}'"),
        ("got Bearer abcdefgh12345", f"got Bearer {MASK}"),
        ("vllm serve m --api-key swordfish --port 1", f"vllm serve m --api-key {MASK} --port 1"),
        ("--api-key=swordfish x", f"--api-key={MASK} x"),
        ("['--api-key', 'swordfish', '--port']", f"['--api-key', '{MASK}', '--port']"),
        (
            "non-default args: {'api_key': ['swordfish'], 'port': 1}",
            f"non-default args: {{'api_key': ['{MASK}'], 'port': 1}}",
        ),
        ("HF_TOKEN=swordfish", f"HF_TOKEN={MASK}"),
        ('"client_secret": "a b\\"c"', f'"client_secret": "{MASK}"'),
        ("password: hunter2", f"password: {MASK}"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+1", f"AWS_SECRET_ACCESS_KEY={MASK}"),
        ("https://user:pa55@host/x", f"https://user:{MASK}@host/x"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, expected: str) -> None:
    assert Redactor().text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "GPU KV cache size: 5,198,936 tokens",
        "max_tokens=32 num_batched_tokens: 2048 max_num_batched_tokens=8192",
        "tokenizer='/models/dense', skip_tokenizer_init=False, tokenizer_mode=auto",
        "eos_token: <|im_end|> pad_token='<pad>'",
        "hf_overrides={} hf_token=None hf_transfer hf_config_path=None",
        "Authorization is off; api_key=None",
        "cache_key_factors.json: cache_key: 0123456789abcdef",
        "disk-1234567890 task-0123456789ab",
        "ms_per_token=12.345 time_per_output_token: 12.3",
        "Using special token: <|im_end|>",
        "stop token was reached",
        "http://127.0.0.1:8000/v1/models",
    ],
)
def test_evidence_stays_readable(text: str) -> None:
    assert Redactor().text(text) == text


def test_given_values_in_every_spelling() -> None:
    redactor = Redactor(['pa"ss wörd', "line one key\nline two key"])
    assert redactor.text('x pa"ss wörd y') == f"x {MASK} y"
    assert redactor.text(json.dumps({"x": 'pa"ss wörd'})) == f'{{"x": "{MASK}"}}'
    assert redactor.text("q=pa%22ss%20w%C3%B6rd") == f"q={MASK}"
    assert redactor.text("only line two key here") == f"only {MASK} here"


@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
@pytest.mark.parametrize("after", ["", "x", "xy"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode, lambda data: data.hex().encode()])
def test_given_values_inside_of_encoded_text(before: str, after: str, encode: Callable[[bytes], bytes]) -> None:
    """At most a neighbour's bits of the value are left, and nothing else of the text is taken."""
    value = "Tr0ub4dor?>~&3x"
    encoded = encode(f"{before}{value}{after}".encode()).decode()
    shown = Redactor([value]).text(f"x {encoded} y")
    assert shown.startswith("x ")
    assert shown.endswith(" y")
    assert "[redacted]" in shown
    left = shown[2:-2].partition("[redacted]")
    assert len(left[0]) + len(left[2]) <= len(encoded) - len(value)


def test_a_very_short_value_does_not_shred_the_text() -> None:
    assert Redactor(["1"]).text("1 of 11 ranks") == "1 of 11 ranks"


def test_json_keys_lists_and_numbers() -> None:
    data = {
        "env": {"HF_TOKEN": "swordfish", "PORT": "1", "VLLM_API_KEY": ""},
        "argv": ["vllm", "--api-key", "swordfish", "--x", "--token=abc", "y"],
        "password": {"inner": "hunter2"},
        "max_tokens": 5,
        "token": None,
        "nested": [{"secret": ["a", 1]}],
    }
    assert Redactor().json(data) == {
        "env": {"HF_TOKEN": MASK, "PORT": "1", "VLLM_API_KEY": ""},
        "argv": ["vllm", "--api-key", MASK, "--x", f"--token={MASK}", "y"],
        "password": {"inner": MASK},
        "max_tokens": 5,
        "token": None,
        "nested": [{"secret": [MASK, 1]}],
    }
    assert MASK not in str(data), "the original is left alone"


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "api-key", "apiKey", "client_secret", "DB_PASSWORD", "token", "access_token"]
)
def test_names_that_say_secret(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize(
    "name", ["max_tokens", "tokenizer", "eos_token", "cache_key", "key", "monkey", "password_file", ""]
)
def test_names_that_do_not(name: str) -> None:
    assert not names_secret(name)


@given(
    before=st.text(alphabet="ab \nxyz", max_size=30),
    after=st.text(alphabet="ab \nxyz", max_size=30),
    cuts=st.lists(st.integers(0, 120), max_size=6),
)
def test_a_secret_split_over_chunks_never_gets_through(before: str, after: str, cuts: list[int]) -> None:
    value = "S3cret-välue"
    data = f"{before}{value}{after}".encode()
    stream = Redactor([value]).stream()
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    out = b"".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(edges)) + stream.close()
    assert out == f"{before}{MASK}{after}".encode()


def test_bytes_that_are_no_text_pass_unchanged() -> None:
    data = bytes(range(256)) * 3
    stream = Redactor(["swordfish"]).stream()
    assert stream.feed(data) + stream.close() == data


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 4097, 5000])
def test_a_line_without_end_is_passed_on_in_bounded_memory(offset: int) -> None:
    stream = Redactor(["swordfish"]).stream()
    filler = b"." * (1 << 16)
    out = stream.feed(filler + b"." * offset + b"sword")
    assert len(out) > 1 << 15, "not held back for ever"
    out += stream.feed(b"fish" + filler) + stream.close()
    assert b"sword" not in out
    assert out.count(MASK.encode()) == 1
    assert out.count(b".") == 2 * (1 << 16) + offset


@pytest.mark.parametrize("place", [1 << 15, (1 << 16) - 4096, (1 << 16) - 4090, (1 << 16) - 4120, 1 << 16])
def test_a_name_stays_with_its_value_in_a_long_line(place: int) -> None:
    data = b"." * (place - 1) + b" --api-key swordfish " + b"." * (1 << 17)
    stream = Redactor().stream()
    out = b"".join(stream.feed(data[i : i + 1000]) for i in range(0, len(data), 1000)) + stream.close()
    assert out == data.replace(b"swordfish", MASK.encode())


def test_what_looks_like_an_endless_secret_is_left_out() -> None:
    stream = Redactor().stream()
    out = b"".join(stream.feed(b"--api-key " * (i == 0) + b"x" * (1 << 16)) for i in range(20)) + stream.close()
    assert MASK.encode() in out
    assert len(out) < 1 << 19


def test_lines_that_flood_are_passed_fast() -> None:
    """Statistics lines hold the word tokens. The limit is a guard: 16 MB/s were seen on a busy core."""
    line = b"INFO 11-29 17:58:21 [loggers.py:123] Avg generation throughput: 120.0 tokens/s, KV cache usage: 3.1%\n"
    stream = Redactor(["swordfish-12345"]).stream()
    begin = time.process_time()
    size = sum(len(stream.feed(line * 500)) for _ in range(20))
    assert size / 1e6 / (time.process_time() - begin) > 5


def test_long_runs_do_not_take_long() -> None:
    for text in ("a" * 200_000, "token" * 40_000, "key_" * 50_000, "- " * 100_000, "hf_" * 60_000, '"' * 100_000):
        assert Redactor().text(text) == text


@pytest.mark.parametrize(
    ("text", "held"),
    [
        (TOKEN, True),
        (KEY, True),
        (f"--hf-token={TOKEN}", True),
        ("hf_" + "a" * 16, True),
        ("sk-" + "a" * 16, True),
        ("nvapi-" + "a" * 16, True),
        ("nvapi-0123456789abcdef", True),
        ("glpat-0123456789abcdef", True),
        ("ghp_0123456789abcdef", True),
        ("AKIA0123456789ABCDEF", True),
        ("/models/hf_Qwen3Next", False),  # masked in a log all the same
        ("risk-assessment-adapter-large", False),  # "sk-…" only within a word
        ("org/task-specific-adapter-v2", False),
        ("${HF_TOKEN}", False),
        ("", False),
    ],
)
def test_a_token_that_a_user_wrote_is_told_from_a_word_that_looks_like_one(text: str, held: bool) -> None:
    assert holds_token(text) == held
    assert not held or MASK in Redactor().text(text)


def test_what_may_name_a_secret_is_wider_than_what_does() -> None:
    hashed = ["MY_API_KEY", "HF_TOKEN", "passphrase", "OAUTH", "clientSecret", "KEYRING", "max_tokens", "PASSWD_FILE"]
    assert [n for n in hashed if not may_name_secret(n)] == []
    assert [n for n in ("VLLM_USE_V1", "CUDA_HOME", "dtype", "") if may_name_secret(n)] == []


@given(st.text(max_size=30))
def test_what_names_a_secret_may_name_one(name: str) -> None:
    assert not names_secret(name) or may_name_secret(name)
