"""The filter DSL: pointers, five operators, and what each check found."""

import datetime as dt
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import InvalidCondition
from duly.model.condition import (
    MAX_KEYS,
    RunStatus,
    Stats,
    context,
    instant,
    parse,
    parse_new,
    parse_pointer,
    prior_run_result,
    resolve,
)

EXAMPLE = {
    "/prior_run_result/status": {"eq": "completed"},
    "/last_24h_stats/failed": {"lt": 3},
}


def holds(pointer: str, operator: str, expected: object, value: object) -> bool:
    return parse({pointer: {operator: expected}}).passes(value)


# Passing and combining ----------------------------------------------------------------------------


@pytest.mark.spec("R124")
@pytest.mark.parametrize("nothing", [None, {}])
@pytest.mark.parametrize("value", [None, {}, {"a": 1}])
def test_no_condition_passes(nothing, value):
    condition = parse(nothing)
    assert condition.passes(value)
    assert condition.explain(value).passes
    assert condition.explain(value).checks == ()


@pytest.mark.spec("R125")
def test_all_keys_must_hold():
    condition = parse({"/a": {"eq": 1}, "/b": {"eq": 2}})
    assert condition.passes({"a": 1, "b": 2})
    assert not condition.passes({"a": 1, "b": 3})
    assert not condition.passes({"a": 0, "b": 2})


@pytest.mark.spec("R140")
def test_the_documents_example_passes_and_fails():
    condition = parse(EXAMPLE)
    good = prior_run_result("succeeded", None)
    bad = prior_run_result("failed", None)
    assert condition.passes(context(good, Stats(3, 2, 5)))
    assert not condition.passes(context(good, Stats(3, 3, 6)))
    assert not condition.passes(context(bad, Stats(3, 2, 5)))
    assert not condition.passes(context(None, Stats()))


# Pointers -----------------------------------------------------------------------------------------


@pytest.mark.spec("R126")
@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("", {"eq": {"a/b": 1, "m~n": [2, {"x": 3}], "~1": 4, "": {"": 5}}}),
        ("/a~1b", {"eq": 1}),
        ("/m~0n/0", {"eq": 2}),
        ("/m~0n/1/x", {"eq": 3}),
        ("/~01", {"eq": 4}),
        ("/", {"eq": {"": 5}}),
        ("//", {"eq": 5}),
    ],
)
def test_pointers_lead_to_keys_items_and_the_whole(pointer, found):
    value = {"a/b": 1, "m~n": [2, {"x": 3}], "~1": 4, "": {"": 5}}
    assert parse({pointer: found}).passes(value)


@pytest.mark.parametrize(
    "step", ["00", "01", "-", "-1", "+1", "2", "1.0", " 1", "١", "1e0", "9" * 9999]
)
def test_only_a_plain_number_in_range_is_an_index(step):
    assert not parse({f"/a/{step}": {"eq": 1}}).explain({"a": [1, 1]}).checks[0].found


@pytest.mark.spec("R127")
def test_a_number_is_a_key_where_there_is_an_object():
    assert holds("/a/0", "eq", "x", {"a": {"0": "x"}})
    assert holds("/a/007", "eq", "y", {"a": {"007": "y"}})
    assert holds("/a/-", "eq", "z", {"a": {"-": "z"}})


@pytest.mark.spec("R128")
@pytest.mark.parametrize("pointer", ["a", "a/b", " /a", "#/a", "last_24h_stats.failed"])
def test_a_pointer_without_a_slash_is_refused(pointer):
    with pytest.raises(InvalidCondition, match="slash") as refused:
        parse({pointer: {"eq": 1}})
    assert refused.value.pointer == pointer
    assert refused.value.hint


@pytest.mark.parametrize("pointer", ["/~", "/a~2b", "/a~/b", "/~~0"])
def test_a_lone_tilde_is_refused(pointer):
    with pytest.raises(InvalidCondition, match="~0"):
        parse({pointer: {"eq": 1}})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("a0-~/", max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


def everywhere(value, prefix=""):
    """Every place in a value, with the pointer that RFC 6901 gives it."""
    yield prefix, value
    if isinstance(value, dict):
        for key, child in value.items():
            step = "".join({"~": "~0", "/": "~1"}.get(letter, letter) for letter in key)
            yield from everywhere(child, f"{prefix}/{step}")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from everywhere(child, f"{prefix}/{index}")


@given(json_values)
def test_every_place_is_found_by_its_pointer(value):
    for pointer, part in everywhere(value):
        assert resolve(value, parse_pointer(pointer)) is part
        assert holds(pointer, "eq", part, value)


# Operators ----------------------------------------------------------------------------------------


@pytest.mark.spec("R129")
@pytest.mark.parametrize(
    ("operator", "passes"),
    [("eq", False), ("neq", True), ("gt", False), ("lt", False), ("contains", False)],
)
@pytest.mark.parametrize("expected", [None, 1, "", "a", [], {}])
@pytest.mark.parametrize("pointer", ["/missing", "/a/b", "/s/0", "/l/5", "/n/x"])
def test_a_path_that_leads_nowhere(pointer, operator, expected, passes):
    assert holds(pointer, operator, expected, {"a": 1, "s": "text", "l": [], "n": None}) is passes


@pytest.mark.spec("R130")
def test_missing_is_not_null():
    assert not holds("/a", "eq", None, {})
    assert holds("/a", "eq", None, {"a": None})
    assert holds("/a", "neq", None, {})
    assert not holds("/a", "neq", None, {"a": None})


@pytest.mark.spec("R131")
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"k": [0, v]}])
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, "1", False),
        (1, 1.0, True),
        (True, 1, False),
        (1, True, False),
        (False, 0, False),
        (0.0, False, False),
        (True, True, True),
        (True, False, False),
        (None, False, False),
        (None, 0, False),
        ("", None, False),
        (0, -0.0, True),
        (2**53, float(2**53), True),
        (2**53 + 1, float(2**53), False),
        (10**30 + 1, 10**30, False),
        (10**30 + 1, 10**30 + 1, True),
        ("a", "A", False),
        ("é", "e\u0301", False),
        ([], {}, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
    ],
)
def test_equality_is_that_of_json_at_any_depth(one, other, same, wrap):
    assert holds("/v", "eq", wrap(other), {"v": wrap(one)}) is same
    assert holds("/v", "neq", wrap(other), {"v": wrap(one)}) is not same
    assert holds("/v", "contains", wrap(other), {"v": ["x", wrap(one)]}) is same


@pytest.mark.spec("R132")
@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2026-07-03T09:00:00+03:00", "2026-07-03T07:00:00Z"),
        ("2026-07-03T23:00:00-05:00", "2026-07-04T04:00:01Z"),
        ("2026-07-03", "2026-07-03T00:00:01Z"),
        ("2026-07-03T09:00", "2026-07-03T09:00:00.000000001Z"),
        ("2026-07-03T09:00:00.1Z", "2026-07-03T09:00:00.12Z"),
        ("2026-07-03t09:00z", "2026-07-03 09:01"),
        ("2026-07-03T12:00+0300", "2026-07-03T12:00+02"),
        ("0001-01-01T00:00+14:00", "0001-01-01T00:00Z"),
        ("9999-12-31T23:59Z", "9999-12-31T23:59-12:00"),
    ],
)
def test_iso_texts_are_ordered_as_instants(earlier, later):
    assert holds("/t", "lt", later, {"t": earlier})
    assert holds("/t", "gt", earlier, {"t": later})
    assert not holds("/t", "gt", later, {"t": earlier})
    assert not holds("/t", "lt", earlier, {"t": later})


@pytest.mark.spec("R132", "R133")
def test_one_instant_written_twice_is_neither_earlier_nor_later():
    value = {"t": "2026-07-03T09:00:00+03:00"}
    for same in ("2026-07-03T06:00:00Z", "2026-07-03T06:00", "2026-07-03T06:00:00.000Z"):
        assert not holds("/t", "gt", same, value)
        assert not holds("/t", "lt", same, value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "20260703",
        "2026-W27-5",
        "2026-07",
        "2026-13-01",
        "2026-02-30",
        "2026-07-03T24:00",
        "2026-07-03T09",
        "2026-07-03T09:60",
        "2026-07-03T09:00+",
        "2026-07-03T09:00+03:",
        "2026-07-03T09:00 Z",
        "2026-07-03\n",
        "٢٠٢٦-٠٧-٠٣",
    ],
)
def test_other_texts_have_no_order(text):
    assert instant(text) is None
    for operator in ("gt", "lt"):
        assert not holds("/t", operator, text, {"t": "2026-07-03"})
        assert not holds("/t", operator, "2026-07-03", {"t": text})


minutes = st.integers(-14 * 60, 14 * 60)


@given(st.datetimes(), minutes, st.datetimes(), minutes)
def test_instants_are_ordered_as_datetimes_are(one, one_offset, other, other_offset):
    first = one.replace(tzinfo=dt.timezone(dt.timedelta(minutes=one_offset)))
    second = other.replace(tzinfo=dt.timezone(dt.timedelta(minutes=other_offset)))
    value = {"t": first.isoformat()}
    assert holds("/t", "lt", second.isoformat(), value) == (first < second)
    assert holds("/t", "gt", second.isoformat(), value) == (first > second)


@pytest.mark.spec("R133")
@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (1, 1),
        (1, 1.0),
        (True, 0),
        (1, False),
        (False, True),
        (True, False),
        ("2", 1),
        (2, "1"),
        ("b", "a"),
        ("2026-07-04", 0),
        (None, 0),
        (1, None),
        ([2], [1]),
        ({"a": 2}, {"a": 1}),
        ([], 0),
    ],
)
def test_what_is_equal_or_has_no_common_order_is_neither_more_nor_less(actual, expected):
    for operator in ("gt", "lt"):
        assert not holds("/v", operator, expected, {"v": actual})


@pytest.mark.spec("R133")
@pytest.mark.parametrize(
    ("less", "more"),
    [
        (1, 2),
        (1, 1.5),
        (-1, 0),
        (2**53, 2**53 + 1),
        (float(2**53), 2**53 + 1),
        (10**30, 10**30 + 1),
    ],
)
def test_numbers_are_ordered_strictly_and_exactly(less, more):
    assert holds("/v", "lt", more, {"v": less})
    assert holds("/v", "gt", less, {"v": more})
    assert not holds("/v", "gt", more, {"v": less})
    assert not holds("/v", "lt", less, {"v": more})


@pytest.mark.spec("R134")
@pytest.mark.parametrize(
    ("actual", "expected", "passes"),
    [
        ("a deadline", "dead", True),
        ("a deadline", "Dead", False),
        ("a.b", ".", True),
        ("ab", ".", False),
        ("100%", "%", True),
        ("abc", "_", False),
        ("text", "", True),
        ("1", 1, False),
        (["a", 1, None, [2], True], "a", True),
        (["a", 1, None, [2], True], 1.0, True),
        ([True], 1, False),
        (["a", 1, None, [2]], None, True),
        (["a", 1, None, [2]], [2], True),
        (["a", 1, None, [2]], 2, False),
        (["abc"], "a", False),
        ({"a": 1}, "a", False),
        (12, 1, False),
        (None, None, False),
        (True, True, False),
    ],
)
def test_contains_is_a_literal_substring_or_membership(actual, expected, passes):
    assert holds("/v", "contains", expected, {"v": actual}) is passes


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.spec("R135")
@pytest.mark.parametrize(
    ("wrong", "pointer", "named"),
    [
        ({"/a": {"gte": 1}}, "/a", "gte"),
        ({"/a": {"EQ": 1}}, "/a", "EQ"),
        ({"/a": {"$eq": 1}}, "/a", "$eq"),
        ({"/a": {}}, "/a", "no operators"),
        ({"/a": {"gt": 1, "lt": 3}}, "/a", "2 operators"),
        ({"/a": {"eq": 1, "what": 3}}, "/a", "what"),
        ({"/a": 1}, "/a", '"eq": 1'),
        ({"/a": None}, "/a", "NoneType"),
        ({"/a": [{"eq": 1}]}, "/a", "list"),
        ({"/ok": {"eq": 1}, "/bad": "x"}, "/bad", "str"),
        ([], None, "object"),
        ("/a", None, "object"),
        (True, None, "object"),
        (0, None, "object"),
        ({1: {"eq": 1}}, None, "text"),
    ],
)
def test_a_malformed_condition_is_refused_where_it_is_wrong(wrong, pointer, named):
    with pytest.raises(InvalidCondition) as refused:
        parse(wrong)
    assert refused.value.pointer == pointer
    assert refused.value.field == "condition"
    assert named in str(refused.value)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "expected",
    [
        float("nan"),
        float("inf"),
        (1, 2),
        {1},
        b"x",
        dt.date(2026, 7, 3),
        {1: 2},
        ["\ud800"],
        "a\0b",
        {"\0": 1},
        10**1001,
        nested(65),
        nested(100_000),
        "x" * 20_000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_stored_is_refused(expected):
    with pytest.raises(InvalidCondition):
        parse({"/a": {"eq": expected}})


def test_a_value_that_contains_itself_is_refused():
    endless: list[object] = []
    endless += [endless, endless]
    with pytest.raises(InvalidCondition, match="deep"):
        parse({"/a": {"eq": endless}})


def test_the_number_of_keys_is_bounded():
    keys = {f"/{n}": {"neq": 1} for n in range(MAX_KEYS + 1)}
    with pytest.raises(InvalidCondition, match="101 keys"):
        parse(keys)
    keys.popitem()
    assert parse(keys).passes({})


def test_a_deep_context_does_no_harm():
    condition = parse({"/a": {"eq": nested(64)}, "/a/0/0": {"neq": 3}})
    assert not condition.passes({"a": nested(100_000)})
    assert condition.passes({"a": nested(64)})


@pytest.mark.spec("N74")
@pytest.mark.parametrize(
    ("pointer", "named"),
    [
        ("/last_24h_stat/failed", "'last_24h_stat'; did you mean 'last_24h_stats'?"),
        ("/prior_run/status", "'prior_run'; did you mean 'prior_run_result'?"),
        ("/x", "'x'; the values are prior_run_result, last_24h_stats, signal_rpc_result"),
        ("/", "''; the values are"),
        ("/last_24h_stats/fail", "last_24h_stats has no 'fail'; did you mean 'failed'?"),
        ("/last_24h_stats/failed/0", "did you mean 'failed'?"),
        ("/last_24h_stats/7", "it has succeeded, failed, total"),
    ],
)
def test_a_pointer_to_a_value_that_cannot_exist_is_refused(pointer: str, named: str):
    given_by_user = EXAMPLE | {pointer: {"neq": 1}}
    with pytest.raises(InvalidCondition) as refused:
        parse_new(given_by_user)
    assert refused.value.pointer == pointer
    assert named in str(refused.value)
    # One that is stored goes on as before.
    assert parse(given_by_user).passes(context({"status": RunStatus.COMPLETED}, Stats()))


@pytest.mark.spec("N74")
def test_pointers_to_values_that_may_exist_are_accepted():
    pointers = [
        "",
        "/prior_run_result",
        "/prior_run_result/anything/0",
        "/signal_rpc_result/any/thing",
        "/last_24h_stats",
        *(f"/last_24h_stats/{count}" for count in Stats._fields),
    ]
    every = {pointer: {"neq": 1} for pointer in pointers}
    assert parse_new(every) == parse(every)


# The previous run ---------------------------------------------------------------------------------


@pytest.mark.spec("N75")
@pytest.mark.parametrize("word", ["completed", "succeeded"])
def test_the_status_that_duly_reports_has_two_names_in_every_operator(word: str):
    seen = context(prior_run_result("succeeded", None), Stats())

    def is_true(operator: str, expected: object, pointer: str = "/prior_run_result/status") -> bool:
        return parse({pointer: {operator: expected}}).passes(seen)

    assert is_true("eq", word)
    assert not is_true("neq", word)
    assert is_true("contains", word)
    assert is_true("contains", word[2:6])
    assert not is_true("gt", word)
    assert not is_true("lt", word)
    assert is_true("eq", {"status": word, "value": None}, "/prior_run_result")
    whole = seen | {"prior_run_result": {"status": word, "value": None}}
    assert is_true("eq", whole, "")
    for other in ("failed", "Completed", "", True, None, [word]):
        assert not is_true("eq", other)
        assert is_true("neq", other)


@pytest.mark.spec("N75")
@pytest.mark.parametrize("state", ["failed", "canceled"])
def test_other_statuses_have_one_name(state: str):
    seen = context(prior_run_result(state, None), Stats())
    for word in ("completed", "succeeded", "failed", "canceled"):
        assert parse({"/prior_run_result/status": {"eq": word}}).passes(seen) is (word == state)


@pytest.mark.spec("N75")
@pytest.mark.parametrize("own", ["completed", "succeeded"])
def test_the_status_of_a_result_is_plain_text(own: str):
    seen = context(prior_run_result("succeeded", json.dumps({"status": own})), Stats())
    for word in ("completed", "succeeded"):
        assert parse({"/prior_run_result/status": {"eq": word}}).passes(seen) is (word == own)


@pytest.mark.spec("N76")
@pytest.mark.parametrize("operator", ["eq", "neq", "gt", "lt", "contains"])
@pytest.mark.parametrize("pointer", ["/prior_run_result/n", "/prior_run_result"])
def test_without_a_previous_run_the_schedule_decides_about_checks_of_it(pointer, operator):
    condition = parse({pointer: {operator: 1}})
    none, some = context(None, Stats()), context({"n": 1}, Stats())
    assert condition.explain(none).passes is (operator == "neq")
    for first_run in ("pass", "fail"):
        explained = condition.explain(none, first_run)
        assert explained.passes is (first_run == "pass")
        assert condition.explain(some, first_run) == condition.explain(some)
        if explained.passes != (operator == "neq"):
            said = f"there is no previous run, and first_run is {first_run}"
            assert explained.checks[0].why == said
            assert explained.passes or explained.detail.endswith(said)


@pytest.mark.spec("N76")
def test_without_a_previous_run_the_other_checks_count_as_ever():
    for pointer in ("/last_24h_stats/failed", "/signal_rpc_result", ""):
        condition = parse({pointer: {"eq": 1}})
        assert not condition.explain(context(None, Stats()), "pass").passes
        assert parse({pointer: {"neq": 1}}).explain(context(None, Stats()), "fail").passes


# Explaining ---------------------------------------------------------------------------------------


@pytest.mark.spec("N77")
@pytest.mark.parametrize(
    ("operator", "expected", "actual", "passes", "why"),
    [
        ("eq", 1, 1.0, True, "1.0 equals 1"),
        ("eq", 1, 2, False, "2 does not equal 1"),
        ("eq", "1", 1, False, '1 does not equal "1": a number never equals text'),
        ("eq", True, 1, False, "1 does not equal true: a number never equals true"),
        ("eq", [1], {}, False, "{} does not equal [1]: an object never equals an array"),
        ("neq", "a", "a", False, '"a" equals "a"'),
        ("neq", "a", "b", True, '"b" does not equal "a"'),
        (
            "eq",
            "succeeded",
            RunStatus.COMPLETED,
            True,
            '"completed" equals "succeeded": both are names of the same status',
        ),
        ("gt", 3, 5, True, "5 is greater than 3"),
        ("gt", 3, 3, False, "3 is not greater than 3"),
        ("lt", "2026-07-03", "2026-07-02", True, '"2026-07-02" is less than "2026-07-03"'),
        (
            "lt",
            3,
            "2",
            False,
            '"2" and 3 have no order: lt compares two numbers, or two ISO 8601 dates or times',
        ),
        ("contains", "b", "abc", True, '"abc" contains "b"'),
        ("contains", 4, [1, 2], False, "[1,2] does not contain 4"),
        ("contains", 4, "4", False, '"4" is text, and 4 is a number'),
        ("contains", 4, 44, False, "44 is a number; contains needs text or an array"),
    ],
)
def test_a_check_says_what_was_compared_and_why(operator, expected, actual, passes, why):
    [check] = parse({"/v": {operator: expected}}).explain({"v": actual}).checks
    assert (check.passes, check.why) == (passes, why)


@pytest.mark.spec("N74", "N77")
def test_a_check_says_why_there_is_no_value():
    misspelled = parse({"/last_24h_stat": {"neq": 1}, "/prior_run_result/n": {"eq": 1}})
    assert [check.why for check in misspelled.explain(context(None, Stats())).checks] == [
        "there is no value 'last_24h_stat'; did you mean 'last_24h_stats'?; "
        "neq is true for a missing value",
        "there is no such value; eq is false for a missing value",
    ]


def test_an_explanation_has_every_check_with_what_it_found():
    seen = parse(EXAMPLE | {"/signal_rpc_result/kpi": {"gt": 1}}).explain(
        context(prior_run_result("succeeded", '{"rows": 7}'), Stats(1, 5, 6))
    )
    assert not seen.passes
    assert [check[:6] for check in seen.checks] == [
        ("/prior_run_result/status", "eq", "completed", True, "completed", True),
        ("/last_24h_stats/failed", "lt", 3, True, 5, False),
        ("/signal_rpc_result/kpi", "gt", 1, False, None, False),
    ]
    assert seen.detail == (
        "/last_24h_stats/failed is 5, expected < 3; /signal_rpc_result/kpi is missing, expected > 1"
    )
    assert seen.failed == seen.checks[1:]


def test_an_explanation_is_short_whatever_it_found():
    seen = parse({"": {"eq": 1}}).explain({"rows": ["x" * 100] * 1000})
    assert len(seen.detail) < 300


def test_a_condition_is_written_as_it_was_read_and_does_not_share():
    given_to_us = {"/a": {"eq": {"deep": [1]}}}
    condition = parse(given_to_us)
    given_to_us["/a"]["eq"]["deep"].append(2)
    assert condition.encode() == {"/a": {"eq": {"deep": [1]}}}
    assert parse(json.loads(json.dumps(condition.encode()))) == condition


MISSING = object()
ISO = ["2026-07-03", "2026-07-03T03:00+03:00", "2026-07-03T00:00:00Z", "2026-07-04", "July"]
small = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, 2, "1", "", "a", "ab", *ISO]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab0"), inner, max_size=2)
    ),
    max_leaves=4,
)


def slow_find(value, pointer):
    if pointer == "":
        return value
    _, _, rest = pointer.partition("/")
    step, slash, more = rest.partition("/")
    if isinstance(value, dict) and step in value:
        value = value[step]
    elif isinstance(value, list) and step in [str(n) for n in range(len(value))]:
        value = value[int(step)]
    else:
        return MISSING
    return slow_find(value, slash + more)


def canonical(value):
    """A text that is the same for values that JSON takes for the same."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(k) + canonical(value[k]) for k in sorted(value)) + "}"
    return str(Fraction(value))


def slow_order(value):
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return "number", Fraction(value)
    if isinstance(value, str) and value.startswith("2026"):
        moment = dt.datetime.fromisoformat(value)
        utc = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
        return "instant", Fraction(utc.timestamp())
    return None


def slow_verdict(actual, operator, expected):
    if operator == "neq":
        return not slow_verdict(actual, "eq", expected)
    if actual is MISSING:
        return False
    if operator == "eq":
        return canonical(actual) == canonical(expected)
    if operator == "contains":
        if isinstance(actual, list):
            return canonical(expected) in [canonical(item) for item in actual]
        return isinstance(actual, str) and isinstance(expected, str) and actual.find(expected) >= 0
    one, other = slow_order(actual), slow_order(expected)
    if one is None or other is None or one[0] != other[0]:
        return False
    return one[1] > other[1] if operator == "gt" else one[1] < other[1]


@given(
    small,
    st.dictionaries(
        st.sampled_from(["", "/a", "/b", "/0", "/a/b", "/a/0", "/0/0", "/b/1", "/a/a/a"]),
        st.tuples(st.sampled_from(["eq", "neq", "gt", "lt", "contains"]), small),
        max_size=3,
    ),
)
def test_every_verdict_is_that_of_an_independent_evaluator(value, rules):
    condition = parse({pointer: {operator: right} for pointer, (operator, right) in rules.items()})
    seen = condition.explain(value)
    for check in seen.checks:
        actual = slow_find(value, check.pointer)
        assert check.found == (actual is not MISSING)
        assert check.passes == slow_verdict(actual, check.operator, check.expected), check
    assert condition.passes(value) == seen.passes == all(check.passes for check in seen.checks)


# The context --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "result", "seen"),
    [
        ("succeeded", '{"rows": 7}', {"rows": 7, "status": "completed"}),
        ("succeeded", '{"status": "partial"}', {"status": "partial"}),
        ("succeeded", "{}", {"status": "completed"}),
        ("succeeded", "7", {"value": 7, "status": "completed"}),
        ("succeeded", '["a"]', {"value": ["a"], "status": "completed"}),
        ("succeeded", "null", {"value": None, "status": "completed"}),
        ("succeeded", None, {"value": None, "status": "completed"}),
        ("failed", None, {"status": "failed"}),
        ("canceled", None, {"status": "canceled"}),
        ("succeeded", str(10**30), {"value": 10**30, "status": "completed"}),
    ],
)
def test_a_finished_job_as_conditions_see_it(state, result, seen):
    assert prior_run_result(state, result) == seen


def test_the_context_has_three_keys():
    assert context(None, Stats(1, 2, 4)) == {
        "prior_run_result": None,
        "last_24h_stats": {"succeeded": 1, "failed": 2, "total": 4},
        "signal_rpc_result": None,
    }
    assert context({"status": "failed"}, Stats(), {"kpi": 3})["signal_rpc_result"] == {"kpi": 3}
