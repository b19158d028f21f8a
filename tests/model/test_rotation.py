"""Successive dispatches take the entries of a rotation in turn."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import InvalidRotation
from duly.model.rotation import MAX_ENTRIES, Rotation, parse

THREE = [
    {"audience": "tech", "tone": "punchy"},
    {"audience": "business", "tone": "measured"},
    {"audience": "research", "tone": "neutral"},
]


@pytest.mark.spec("R141")
@given(
    st.integers(0, 2**63 - 1), st.lists(st.dictionaries(st.text("ab"), st.integers()), min_size=1)
)
def test_the_entry_is_the_index_modulo_the_length(index, entries):
    position, inputs = Rotation(entries).pick(index)
    assert position == index % len(entries)
    assert inputs == entries[position]


@pytest.mark.spec("R142")
def test_the_fourth_of_three_is_the_first():
    rotation = Rotation(THREE)
    assert [rotation.pick(index).position for index in range(4)] == [0, 1, 2, 0]
    assert rotation.pick(3).inputs == THREE[0]


@pytest.mark.spec("R144")
@pytest.mark.parametrize("nothing", [None, [], ()])
def test_nothing_to_rotate_is_no_rotation(nothing):
    assert parse(nothing) is None


def test_a_stored_empty_rotation_is_false():
    assert not Rotation([])
    with pytest.raises(InvalidRotation, match="the rotation is empty"):
        Rotation([]).pick(0)


def test_a_shortened_rotation_is_still_in_range():
    assert Rotation(THREE[:2]).pick(5) == (1, THREE[1])


@pytest.mark.parametrize(
    ("wrong", "index", "named"),
    [
        ({}, None, "list of objects, not dict"),
        ("abc", None, "str"),
        (3, None, "int"),
        (["a"], 0, "str"),
        ([{}, None], 1, "NoneType"),
        ([{}, {}, []], 2, "list"),
        ([{"a": float("nan")}], 0, ".a: nan"),
        ([{"a": [{"b": {1}}]}], 0, ".a[0].b: set"),
        ([{1: 2}], 0, "the key 1"),
        ([{"a": "\0"}], 0, "NUL"),
        ([{}] * (MAX_ENTRIES + 1), None, "1,001 entries"),
        ([{"a": "x" * 600_000}] * 2, None, "bytes"),
    ],
)
def test_a_wrong_entry_is_refused_by_its_index(wrong, index, named):
    with pytest.raises(InvalidRotation) as refused:
        parse(wrong)
    assert refused.value.index == index
    assert refused.value.field == "rotation"
    assert named in str(refused.value)


def test_nobody_can_change_an_entry_in_place():
    given_to_us = [{"tags": ["a"]}]
    rotation = Rotation(given_to_us)
    given_to_us[0]["tags"].append("b")
    rotation.pick(0).inputs["tags"].append("c")
    assert rotation.pick(0).inputs == {"tags": ["a"]}


def test_a_rotation_is_written_as_it_was_read():
    assert Rotation(THREE).encode() == THREE
    assert Rotation(json.loads(json.dumps(Rotation(THREE).encode()))) == Rotation(THREE)
    assert len(Rotation(THREE)) == 3
