from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ticket_lines import json_values, outcome, unicode_text

from ticket_agent.protocol import JsonError, ProtocolError, dumps, parse_object
from ticket_agent.protocol.json_strict import MAX_DEPTH, count_outside_strings, parse_array, sorted_members

BIG = 1 << 20


def parse(data: bytes) -> dict[str, object]:
    return parse_object(data, what="line", max_bytes=BIG)


def refusal(data: bytes) -> ProtocolError:
    with pytest.raises(JsonError) as caught:
        parse(data)
    return caught.value


@given(st.dictionaries(unicode_text, json_values, max_size=6))
def test_what_is_written_is_read_back(document: dict[str, object]) -> None:
    assert parse(dumps(document)) == document


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_an_object_or_a_json_error(data: bytes) -> None:
    value = outcome(lambda: parse(data))
    if isinstance(value, ProtocolError):
        assert value.code.startswith("json-")
        assert str(value).isprintable()
    else:
        assert isinstance(value, dict)


@given(st.text('{}[]":,\\ud80e-+.0123456789truefalsnN \n\x00', max_size=80))
def test_json_like_text_agrees_with_the_standard_decoder_or_is_stricter(text: str) -> None:
    value = outcome(lambda: parse(text.encode()))
    if not isinstance(value, ProtocolError):
        assert json.loads(text) == value


@pytest.mark.parametrize(
    ("data", "code", "member"),
    [
        (b'{"a":{"b":[0,{"c":1,"c":1}]}}', "json-repeated", "a.b.1.c"),
        (b'{"a":[1,-0]}', "json-number", "a.1"),
        (b'{"a":[1,NaN]}', "json-number", "a.1"),
        (b'{"a":{"b":1e400}}', "json-number", "a.b"),
        (b'{"a":18446744073709551616}', "json-number", "a"),
        (b'{"a":-9223372036854775809}', "json-number", "a"),
        (b'{"a":"\\ud83d"}', "json-surrogate", "a"),
        (b'{"a":{"\\ud83d":1}}', "json-surrogate", "a.\\ud83d"),
        (b'{"a":["x","\\udc00\\ud83d"]}', "json-surrogate", "a.1"),
    ],
)
def test_the_path_of_the_member_is_named(data: bytes, code: str, member: str) -> None:
    error = refusal(data)
    assert (error.code, error.member) == (code, member)
    assert member in str(error)


def test_the_first_refusal_stands_when_the_rest_is_broken_too() -> None:
    error = refusal(b'{"a":1,"b":{"x":-0},')
    assert (error.code, error.member) == ("json-number", None)


@pytest.mark.parametrize("text", ["18446744073709551615", "-9223372036854775808", "0", "-1"])
def test_integers_up_to_both_ends_are_read(text: str) -> None:
    assert parse(b'{"a":%s}' % text.encode()) == {"a": int(text)}


def test_surrogate_pairs_are_one_character() -> None:
    assert parse(b'{"a":"\\ud83d\\ude42"}') == {"a": "\N{SLIGHTLY SMILING FACE}"}


def test_long_digits_are_refused_before_they_are_converted() -> None:
    digits = b"9" * (sys.get_int_max_str_digits() + 1)
    assert refusal(b'{"a":' + digits + b"}").code == "json-number"


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_bounded_exactly(opening: bytes, closing: bytes) -> None:
    inner = MAX_DEPTH - 1
    assert parse(b'{"a":' + opening * inner + b"0" + closing * inner + b"}")
    inner += 1
    assert refusal(b'{"a":' + opening * inner + b"0" + closing * inner + b"}").code == "json-depth"


@pytest.mark.parametrize("count", [128, 5_000, 200_000])
def test_deep_nesting_never_reaches_the_recursion_limit(count: int) -> None:
    for opening in (b"[", b'{"a":', b'[{"":'):
        assert refusal(opening * count).code in {"json-depth", "json-too-long"}


def test_brackets_in_strings_do_not_nest() -> None:
    assert parse(dumps({"a": "[{" * 500 + '\\"' + "[" * 500}))


@given(json_values, st.sampled_from([b"{", b"[", b"{[", b":", b","]))
def test_marks_in_strings_are_not_counted(value: object, marks: bytes) -> None:
    def walk(item: object) -> int:
        if isinstance(item, dict):
            own = {b"{": 1, b"{[": 1, b":": len(item), b",": max(len(item) - 1, 0)}.get(marks, 0)
            return own + sum(map(walk, item.values()))
        if isinstance(item, list):
            return {b"[": 1, b"{[": 1, b",": max(len(item) - 1, 0)}.get(marks, 0) + sum(map(walk, item))
        return 0

    assert count_outside_strings(dumps(value), marks) == walk(value)


def test_many_flat_containers_do_not_nest() -> None:
    assert parse(dumps({"a": [[] for _ in range(500)]}))


def test_the_limit_of_bytes_is_inclusive() -> None:
    data = b'{"a":1}'
    assert parse_object(data, what="line", max_bytes=len(data)) == {"a": 1}
    with pytest.raises(JsonError, match=r"takes 7 bytes; the limit is 6"):
        parse_object(data, what="line", max_bytes=len(data) - 1)


def test_only_bytes_are_taken() -> None:
    with pytest.raises(JsonError, match="must be bytes, not str"):
        parse_object("{}", what="line", max_bytes=9)  # type: ignore[arg-type]


def test_escapes_are_those_of_serde_json() -> None:
    text = "".join(map(chr, range(0x20))) + '"\\/\x7f\x80é\u2028🙂'
    assert dumps(text).decode() == (
        '"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n\\u000b\\f\\r\\u000e\\u000f'
        "\\u0010\\u0011\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001a\\u001b\\u001c\\u001d"
        '\\u001e\\u001f\\"\\\\/\x7f\x80é\u2028🙂"'
    )


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, float("nan"), [float("inf")]])
def test_what_json_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises(JsonError):
        dumps(value)


def test_members_are_sorted_at_every_depth() -> None:
    value = {"b": [{"d": 1, "c": 2}], "a": {"f": 1, "e": None}}
    assert dumps(sorted_members(value)) == b'{"a":{"e":null,"f":1},"b":[{"c":2,"d":1}]}'


def test_an_array_keeps_the_same_rules() -> None:
    assert parse_array(b'[1,"a",[]]', what="rows", max_bytes=BIG) == [1, "a", []]
    for bad, code in (
        (b"{}", "json-not-array"),
        (b'[{"a":1,"a":1}]', "json-repeated"),
        (b"[NaN]", "json-number"),
        (b'["\\ud800"]', "json-surrogate"),
        (b"[" * 128 + b"]" * 128, "json-depth"),
        (b"[1", "json-syntax"),
    ):
        with pytest.raises(JsonError) as caught:
            parse_array(bad, what="rows", max_bytes=BIG)
        assert caught.value.code == code
    with pytest.raises(JsonError, match="the limit is 2"):
        parse_array(b"[1]", what="rows", max_bytes=2)
