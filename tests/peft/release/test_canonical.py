from __future__ import annotations

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.release.canonical import (
    FLOAT_BELOW,
    FLOAT_FROM,
    decode_array,
    decode_object,
    encode,
    encode_ordered,
)
from ticket_agent.peft.release.document_error import DocumentError

FLOATS = st.floats(min_value=FLOAT_FROM, max_value=FLOAT_BELOW, exclude_max=True) | st.just(0.0)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | FLOATS
    | FLOATS.filter(bool).map(lambda x: -x)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abé\U0001f600"), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abcé"), VALUES, max_size=4))
def test_what_is_encoded_is_read_back(value: dict[str, object]) -> None:
    data = encode(value)
    assert data.isascii()
    assert decode_object(data, what="it") == value
    assert encode(json.loads(data)) == data


@given(st.lists(VALUES, max_size=4))
def test_arrays_too(value: list[object]) -> None:
    assert decode_array(encode(value), what="it") == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_object, decode_array):
        with suppress(DocumentError):
            assert encode(decode(data, what="it")) == data


@given(FLOATS)
def test_no_accepted_number_has_an_exponent(value: float) -> None:
    for data in (encode([value]), encode_ordered([value])):
        assert b"e" not in data


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"b": 1, "a": [True, None, "x"]}, b'{"a":[true,null,"x"],"b":1}'),
        ({"é": "ü\n"}, b'{"\\u00e9":"\\u00fc\\n"}'),
        ("\U0001f600", b'"\\ud83d\\ude00"'),
        ([0.0, 4.0, -8.5, 1e-4, 9999999999999998.0], b"[0.0,4.0,-8.5,0.0001,9999999999999998.0]"),
        ([2**64 - 1, -(2**63)], b"[18446744073709551615,-9223372036854775808]"),
        ((1, 2), b"[1,2]"),
    ],
)
def test_spelling(value: object, data: bytes) -> None:
    assert encode(value) == data


def test_the_ordered_spelling_keeps_order_and_text() -> None:
    assert encode_ordered({"b": "é", "a": 1.0}) == '{"b":"é","a":1.0}'.encode()


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        -0.0,
        1e-5,
        -9.9e-5,
        1e16,
        2**64,
        -(2**63) - 1,
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        b"x",
        {1, 2},
        [[[1e-9]]],
    ],
    ids=repr,
)
def test_values_without_a_spelling(value: object) -> None:
    for spell in (encode, encode_ordered):
        with pytest.raises(DocumentError):
            spell(value)


def test_depth_is_bounded() -> None:
    value: object = []
    for _ in range(40):
        value = [value]
    with pytest.raises(DocumentError, match="nests more than 32"):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b' {"a":1}',
        b'{"a":1}\n',
        '{"a":"é"}'.encode(),
        b'{"a":"\\u00E9"}',
        b'{"a":"\\/"}',
        b'{"a":1.00}',
        b'{"a":1e0}',
        b'{"a":0.00001}',
        b'{"a":1e16}',
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b'{"a":-0}',
        b'{"a":"\\ud800"}',
        b"\xef\xbb\xbf{}",
        b"[]",
        b"",
    ],
)
def test_other_spellings_are_refused(data: bytes) -> None:
    with pytest.raises(DocumentError, match=r"^it: "):
        decode_object(data, what="it")


def test_the_bound_is_tested_first() -> None:
    with pytest.raises(DocumentError, match="the limit is 9"):
        decode_object(b'{"a":"xx"}', what="it", max_bytes=9)
    assert decode_object(b'{"a":"x"}', what="it", max_bytes=9) == {"a": "x"}
