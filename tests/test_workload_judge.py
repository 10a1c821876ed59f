"""Texts judged by themselves: gross faults are found with a reason, and ordinary text of every kind passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_startup.workload.judge import blemishes

BAD = [
    ("", "empty", "the text is empty"),
    (" \n\t ", "empty", "the text is only white space"),
    ("!" * 64, "flood", "'!' 64 times in a row"),
    ("The answer is 42" + "!" * 30, "flood", "'!' 30 times in a row"),
    ("! " * 40, "flood", "nothing but '!', 40 times"),
    ("a" * 200, "flood", "'a' 200 times in a row"),
    ("ok" + "\n" * 400 + "ok", "flood", "'\\n' 400 times in a row"),
    ("哈" * 40, "flood", "'哈' 40 times in a row"),
    ("0" * 300, "flood", "'0' 300 times in a row"),
    ("Paris\ufffd\ufffd is", "replacement-character", "2 × U+FFFD: broken UTF-8"),
    ("Paris\x00\x01", "control-character", "2 × control character U+0000"),
    ("Paris.<|im_end|>", "control-token", "leaked <|im_end|>"),
    ("Paris.<|eot_id|><|start_header_id|>assistant", "control-token", "leaked <|eot_id|>"),
    ("Paris. [/INST]", "control-token", "leaked [/INST]"),
    ("<s> Paris", "control-token", "leaked <s>"),
    ("Paris</s>", "control-token", "leaked </s>"),
    ("Paris<\uff5cend\u2581of\u2581sentence\uff5c>", "control-token", "leaked <\uff5cend\u2581of\u2581sentence\uff5c>"),
    ("Paris<end_of_turn>", "control-token", "leaked <end_of_turn>"),
    ("Paris<unk><unk>", "control-token", "leaked <unk>"),
    ("The cat sat on the mat. " * 8, "loop", "'The cat sat on the mat.' 8 times in a row"),
    ("I think so. " + "and then he went home and " * 6, "loop", "'and then he went home and' 6 times in a row"),
    ("the " * 40, "loop", "'the' 40 times in a row"),
    ("Yes, no, " * 20, "loop", "'Yes, no,' 20 times in a row"),
    ("好的。" * 12, "loop", "'好的。' 12 times in a row"),
    (
        "A long first sentence that says a thing about the weather of the day and then goes on. " * 4,
        "loop",
        "",
    ),
    ("1. Paris\n" + "- It is a city.\n" * 10, "loop", "'- It is a city.' 10 times in a row"),
]

GOOD = [
    "Paris.",
    "no no no no, never",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20",
    "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12",
    "one two three four five six seven eight nine ten one two three four five six seven eight nine ten",
    "=" * 80 + "\nTitle\n" + "-" * 80,
    "| name | value |\n|------|-------|\n" + "".join(f"| row {i} | 0 |\n" for i in range(12)),
    "| a | b |\n|---|---|\n" + "| 0 | 0 |\n" * 12,
    "[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]",
    "1010101010101010101010101010101010101010",
    "3.14159265358979323846264338327950288419716939937510",
    "def f(a):\n    if a:\n        if a > 1:\n            return [\n                1,\n            ]\n    return 0\n",
    "}\n}\n}\n}\n}\n",
    "x = x + 1\ny = y + 1\nz = z + 1\nw = w + 1\n",
    "a[0] = 1;\na[1] = 1;\na[2] = 1;\na[3] = 1;\na[4] = 1;\na[5] = 1;\n",
    "<ul>\n<li>one</li>\n<li>two</li>\n<li>three</li>\n<li>four</li>\n<li>five</li>\n</ul>",
    "std::vector<s> v; and a <b>bold</b> word: <s>old price</s> new price",
    "Row, row, row your boat,\nGently down the stream.\nMerrily, merrily, merrily, merrily,\nLife is but a dream.",
    "And the bird sang.\nThe sun rose.\nAnd the bird sang.\nThe rain fell.\nAnd the bird sang.\nThe wind blew.\n",
    "Never again, never again, never again, I said.",
    "春眠不觉晓,处处闻啼鸟。夜来风雨声,花落知多少。",
    "これはペンです。それは本です。あれは机です。これはペンですか。",
    "서울은 대한민국의 수도입니다. 부산은 두 번째로 큰 도시입니다.",
    "hahahahahahahaha, that is funny",
    "😀😀😀 great 👍🏽 👨‍👩‍👧‍👦",
    "Café, naïve, Ærøskøbing, Ελληνικά, русский, العربية, हिन्दी",
    "Use the `|` operator: a | b, and `<` with `>`: a < b > c; `[INSERT]` is not a token",
    "<think>\nWell.\n</think>\nParis",
    "tic tac tic tac tic tac",
    "..." * 10,
    "\tindented\n" * 2,
    "aaaaaaaargh!!!!!!!!!!",
]


@pytest.mark.parametrize(("text", "kind", "reason"), BAD, ids=range(len(BAD)))
def test_faults_are_found(text: str, kind: str, reason: str) -> None:
    (found,) = blemishes(text)
    assert found.kind == kind
    assert reason in found.reason
    assert found.excerpt
    assert len(found.excerpt) <= 120


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_ordinary_text_passes(text: str) -> None:
    assert blemishes(text) == ()


def test_several_faults_are_all_told() -> None:
    kinds = [b.kind for b in blemishes("x\ufffd</s>" + " round and round it goes" * 9)]
    assert kinds == ["replacement-character", "control-token", "loop"]


def test_what_the_prompt_holds_is_not_a_leak() -> None:
    assert blemishes("The token <|im_end|> ends a turn.", prompt="What does <|im_end|> mean?") == ()
    assert blemishes("It ends a turn.<|im_start|>", prompt="What does <|im_end|> mean?") != ()


def test_a_character_that_was_cut_at_the_limit_is_no_fault() -> None:
    assert blemishes("caf\ufffd", cut=True) == ()
    assert blemishes("caf\ufffd") != ()
    assert blemishes("c\ufffdf\ufffd", cut=True) != ()
    assert blemishes("caf" + "\ufffd" * 4, cut=True) != ()


def test_a_loop_in_the_middle_needs_twice_as_much() -> None:
    unit = "the cat sat on the mat "
    assert blemishes("So " + unit * 6 + "and that was all of it.") == ()
    assert [b.kind for b in blemishes("So " + unit * 12 + "and that was all of it.")] == ["loop"]


@given(st.text(max_size=400), st.booleans())
def test_it_never_raises_and_always_explains(text: str, cut: bool) -> None:
    for found in blemishes(text, cut=cut):
        assert found.reason
        assert found.excerpt


@given(
    st.lists(
        st.sampled_from(["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]),
        min_size=5,
        max_size=8,
        unique=True,
    )
)
def test_any_long_repetition_is_a_loop(words: list[str]) -> None:
    assert [b.kind for b in blemishes((" ".join(words) + " ") * 10)] == ["loop"]


def test_a_long_text_is_judged_in_time() -> None:
    text = " ".join(str(i * i) for i in range(4000))
    assert blemishes(text) == ()
