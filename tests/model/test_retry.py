"""Retry policies: how long they wait."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import Retry
from duly.model.retry import decode_retry, encode_retry

CHANCES = st.floats(min_value=0, max_value=1, exclude_max=True)
SECONDS = st.floats(min_value=0, max_value=86_400)
JITTERS = SECONDS | st.integers(min_value=0, max_value=100).map(lambda percent: f"{percent}%")


@st.composite
def policies(draw: st.DrawFn) -> Retry:
    cap = draw(SECONDS)
    below = st.floats(min_value=0, max_value=cap)
    if draw(st.booleans()):
        listed = draw(st.lists(below, min_size=1, max_size=9))
        return Retry(delay=listed, cap=cap, jitter=draw(JITTERS))
    return Retry(
        draw(st.integers(min_value=1, max_value=5000)),
        delay=draw(below),
        factor=draw(st.floats(min_value=1, max_value=1000)),
        cap=cap,
        jitter=draw(JITTERS),
    )


def waits(policy: Retry, chance: float = 0.0) -> list[float]:
    """The delays between the attempts of a job that always fails."""
    found: list[float] = []
    while policy.allows(len(found) + 1):
        found.append(policy.delay_after(len(found) + 1, chance))
    return found


@pytest.mark.spec("R174")
@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (Retry(), [2, 4, 8, 16]),
        (Retry(5, delay=10), [10, 20, 40, 80]),
        (Retry(5, delay=10, factor=3), [10, 30, 90, 270]),
        (Retry(5, delay=30, factor=1), [30, 30, 30, 30]),
        (Retry(7, delay=60, cap=600), [60, 120, 240, 480, 600, 600]),
        (Retry(delay=[1, 10, 60]), [1, 10, 60]),
        (Retry(4, delay=(1, 10, 60)), [1, 10, 60]),
        (Retry(delay=[timedelta(minutes=1), 5]), [60, 5]),
        (Retry(3, delay=timedelta(minutes=1), cap=timedelta(minutes=1.5)), [60, 90]),
        (Retry(1), []),
        (Retry(3, delay=0), [0, 0]),
    ],
)
def test_the_delays_of_a_policy(policy: Retry, delays: list[float]):
    assert waits(policy) == delays


@pytest.mark.spec("R174")
@pytest.mark.parametrize(
    ("jitter", "delays"),
    [
        (0, [10, 20]),
        (4, [12, 22]),
        (timedelta(seconds=4), [12, 22]),
        ("20%", [11, 22]),
        ("0%", [10, 20]),
        ("2.5%", [10.125, 20.25]),
    ],
)
def test_jitter_is_added_in_seconds_or_as_a_part_of_the_delay(jitter: Any, delays: list[float]):
    assert waits(Retry(3, delay=10, jitter=jitter), chance=0.5) == pytest.approx(delays)


@pytest.mark.spec("R176")
@given(policies(), st.integers(min_value=1, max_value=5000), CHANCES)
def test_no_delay_is_negative_or_longer_than_the_cap(policy: Retry, attempt: int, chance: float):
    assert 0 <= policy.delay_after(attempt, chance) <= policy.cap  # type: ignore[operator]


@given(policies(), st.integers(min_value=1, max_value=5000), CHANCES)
def test_jitter_never_shortens_a_delay(policy: Retry, attempt: int, chance: float):
    assert policy.delay_after(attempt, 0) <= policy.delay_after(attempt, chance)


@given(policies(), st.integers(min_value=1, max_value=5000))
def test_a_factor_never_shortens_the_next_delay(policy: Retry, attempt: int):
    if isinstance(policy.delay, float):
        assert policy.delay_after(attempt, 0) <= policy.delay_after(attempt + 1, 0)


@given(policies())
def test_a_stored_policy_is_read_as_it_was(policy: Retry):
    assert decode_retry(encode_retry(policy)) == policy
    assert hash(decode_retry(encode_retry(policy))) == hash(policy)


def test_a_delay_that_no_float_can_hold_is_capped():
    assert Retry(5000, factor=1000).delay_after(4999, 0) == 3600
    assert Retry(5000, delay=0, factor=1000, jitter=0).delay_after(4999, 0) == 0


def test_a_field_that_is_not_known_is_ignored():
    assert decode_retry(json.dumps({"attempts": 3, "base": 60.0})) == Retry(3)
