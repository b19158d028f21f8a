"""Who may send: published vectors, an oracle, and every byte changed once."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from unittest.mock import patch

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from duly.endpoints.secrets import check_reference, resolve, value_of
from duly.errors import InvalidOption, SecretMissing
from duly.webhooks import (
    HMAC,
    Atlassian,
    Bearer,
    Delivery,
    GitHub,
    Refused,
    Source,
    StandardWebhooks,
    Stripe,
    Svix,
)
from duly.webhooks.sources import GivenHeaders

BODY = b'{"id":"evt_1","type":"invoice.paid","n":[1,2,3]}'
AT = 1_700_000_000
NOW = AT * 1000
KEY = base64.b64encode(b"a key of twenty-four byt").decode()


def sha256(secret: bytes, message: bytes) -> str:
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def standard(prefix: str = "webhook", key: str = KEY, at: int = AT) -> dict[str, str]:
    signer = standardwebhooks.Webhook(f"whsec_{key}")
    signature = signer.sign("msg_1", datetime.fromtimestamp(at, UTC), BODY.decode())
    return {
        f"{prefix}-id": "msg_1",
        f"{prefix}-timestamp": str(at),
        f"{prefix}-signature": signature,
    }


def stripe(secret: bytes = b"whsec_x", at: int = AT) -> str:
    return f"t={at},v1={sha256(secret, f'{at}.'.encode() + BODY)}"


def slack(at: int = AT) -> dict[str, str]:
    signature = sha256(b"s", f"v0:{at}:".encode() + BODY)
    return {"X-Slack-Signature": f"v0={signature}", "X-Slack-Request-Timestamp": str(at)}


SLACK = HMAC(
    header="X-Slack-Signature",
    prefix="v0=",
    timestamp="X-Slack-Request-Timestamp",
    signed="v0:{timestamp}:{body}",
)

# Each source, the headers of a good request, the name of the signature's header, a secret.
CASES: dict[str, tuple[Source, Mapping[str, str], str, bytes]] = {
    "github": (
        GitHub(),
        {"X-Hub-Signature-256": f"sha256={sha256(b's', BODY)}", "X-GitHub-Delivery": "d"},
        "X-Hub-Signature-256",
        b"s",
    ),
    "atlassian": (
        Atlassian(),
        {"X-Hub-Signature": f"sha256={sha256(b's', BODY)}"},
        "X-Hub-Signature",
        b"s",
    ),
    "stripe": (Stripe(), {"Stripe-Signature": stripe()}, "Stripe-Signature", b"whsec_x"),
    "standard": (StandardWebhooks(), standard(), "webhook-signature", KEY.encode()),
    "svix": (Svix(), standard("svix"), "svix-signature", f"whsec_{KEY}".encode()),
    "hmac": (SLACK, slack(), "X-Slack-Signature", b"s"),
    "bearer": (Bearer(), {"Authorization": "Bearer s3cret"}, "Authorization", b"s3cret"),
}
SIGNED = [name for name in CASES if name != "bearer"]


def status(source: Source, headers: GivenHeaders, body: bytes, secrets: Sequence[bytes]) -> int:
    try:
        source.verify(headers, body, secrets, NOW)
    except Refused as verdict:
        return verdict.status
    return 200


def is_refused(source: Source, headers: Mapping[str, str], body: bytes, *secrets: bytes) -> bool:
    verdict = status(source, headers, body, secrets)
    assert verdict in (200, 401)
    return verdict == 401


# Published vectors


@pytest.mark.spec("R194")
def test_the_vector_of_github():
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {
        "x-hub-signature-256": signature,
        "x-github-delivery": "72d3162e",
        "x-github-event": "push",
    }
    secrets = [b"It's a Secret to Everybody"]
    assert GitHub().verify(headers, b"Hello, World!", secrets, 0) == Delivery("72d3162e", "push")


@pytest.mark.spec("R194")
def test_the_vector_of_atlassian():
    signature = "sha256=a4771c39fbe90f317c7824e83ddef3caae9cb3d976c214ace1f2937e133263c9"
    secrets = [b"It's a Secret to Everybody"]
    found = Atlassian().verify({"X-Hub-Signature": signature}, b"Hello World!", secrets, 0)
    assert found == Delivery(None, None)


@pytest.mark.spec("R194")
@pytest.mark.parametrize(("source", "name"), [(StandardWebhooks(), "webhook"), (Svix(), "svix")])
def test_the_vector_of_standard_webhooks_and_svix(source: Source, name: str):
    headers = {
        f"{name}-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        f"{name}-timestamp": "1614265330",
        f"{name}-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    secrets = [b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
    found = source.verify(headers, b'{"test": 2432232314}', secrets, 1_614_265_330_000)
    assert found == Delivery("msg_p5jXN8AQM9LWM0D4loKWxJek", None)


@pytest.mark.spec("R194")
def test_the_vector_of_slack_by_a_generic_hmac():
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
        b"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
        b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    headers = {"x-slack-signature": signature, "x-slack-request-timestamp": "1531420618"}
    SLACK.verify(headers, body, [b"8f742231b10e8888abcd99yyyzzz85a5"], 1_531_420_618_000)


@given(body=st.text(), message_id=st.from_regex(r"[a-zA-Z0-9_]{1,20}", fullmatch=True))
def test_the_reference_implementation_signs_what_is_accepted(body: str, message_id: str):
    at = datetime.fromtimestamp(AT, UTC)
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(AT),
        "webhook-signature": standardwebhooks.Webhook(KEY).sign(message_id, at, body),
    }
    found = StandardWebhooks().verify(headers, body.encode(), [KEY.encode()], NOW)
    assert found.delivery_id == message_id


# What is refused


@pytest.mark.parametrize("name", CASES)
def test_a_good_request_is_accepted(name: str):
    source, headers, _, secret = CASES[name]
    assert not is_refused(source, headers, BODY, secret)
    assert not is_refused(source, {k.upper(): v for k, v in headers.items()}, BODY, secret)


@pytest.mark.spec("R183")
@pytest.mark.parametrize("name", CASES)
def test_a_missing_empty_or_repeated_signature_is_refused(name: str):
    source, headers, signature, secret = CASES[name]
    without = {key: value for key, value in headers.items() if key != signature}
    assert is_refused(source, without, BODY, secret)
    assert is_refused(source, without | {signature: ""}, BODY, secret)
    assert is_refused(source, without | {signature: headers[signature] + "é"}, BODY, secret)
    with pytest.raises(Refused, match="2 times"):
        source.verify([*headers.items(), (signature, headers[signature])], BODY, [secret], NOW)


@pytest.mark.spec("R183")
@pytest.mark.parametrize("name", SIGNED)
def test_every_byte_of_the_body_counts(name: str):
    source, headers, _, secret = CASES[name]
    for place in range(len(BODY)):
        for bit in (1, 0x20, 0x80):
            changed = bytearray(BODY)
            changed[place] ^= bit
            assert is_refused(source, headers, bytes(changed), secret), (place, bit)
    assert is_refused(source, headers, BODY + b" ", secret)
    assert is_refused(source, headers, BODY[:-1], secret)


@pytest.mark.spec("R183")
@pytest.mark.parametrize("name", CASES)
def test_every_byte_of_the_signature_counts(name: str):
    source, headers, signature, secret = CASES[name]
    value = headers[signature]
    start = len("Bearer ") if name == "bearer" else 0
    for place in range(start, len(value)):
        for bit in (1, 0x20, 0x80):
            changed = value[:place] + chr(ord(value[place]) ^ bit) + value[place + 1 :]
            assert is_refused(source, {**headers, signature: changed}, BODY, secret), changed
    assert is_refused(source, {**headers, signature: value[:-1]}, BODY, secret)
    assert is_refused(source, {**headers, signature: value + "0"}, BODY, secret)


@pytest.mark.spec("R194")
def test_sha1_is_refused_everywhere():
    old = "sha1=" + hmac.new(b"s", BODY, hashlib.sha1).hexdigest()
    for source, name in [(GitHub(), "X-Hub-Signature-256"), (Atlassian(), "X-Hub-Signature")]:
        assert is_refused(source, {name: old}, BODY, b"s")
    assert is_refused(GitHub(), {"X-Hub-Signature": old}, BODY, b"s")
    with pytest.raises(InvalidOption, match="digest"):
        HMAC(header="x", digest="sha1")


@pytest.mark.spec("R184")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("secrets", [[], [b""], [b"", b""]])
def test_without_a_secret_nothing_is_accepted(name: str, secrets: list[bytes]):
    source, headers, _, _ = CASES[name]
    with pytest.raises(Refused) as refused:
        source.verify(headers, BODY, secrets, NOW)
    assert refused.value.status == 500


def test_an_empty_secret_is_no_key_even_if_somebody_signs_with_it():
    headers = {"X-Hub-Signature-256": f"sha256={sha256(b'', BODY)}"}
    assert is_refused(GitHub(), headers, BODY, b"", b"other")
    assert is_refused(Bearer(), {"Authorization": "Bearer "}, BODY, b"", b"other")


@pytest.mark.spec("R193")
@pytest.mark.parametrize("name", CASES)
def test_either_of_two_secrets_verifies(name: str):
    source, headers, _, secret = CASES[name]
    other = base64.b64encode(b"another key, as long as.")
    assert not is_refused(source, headers, BODY, secret, other)
    assert not is_refused(source, headers, BODY, other, secret)
    assert is_refused(source, headers, BODY, other)


@pytest.mark.spec("R195")
@pytest.mark.parametrize(
    "sign",
    [
        lambda at: (Stripe(), {"Stripe-Signature": stripe(at=at)}, b"whsec_x"),
        lambda at: (StandardWebhooks(), standard(at=at), KEY.encode()),
        lambda at: (Svix(), standard("svix", at=at), KEY.encode()),
        lambda at: (SLACK, slack(at), b"s"),
    ],
    ids=["stripe", "standard", "svix", "hmac"],
)
def test_a_time_more_than_300_seconds_away_is_refused(
    sign: Callable[[int], tuple[Source, Mapping[str, str], bytes]],
):
    for off, refused in [(0, False), (300, False), (-300, False), (301, True), (-301, True)]:
        source, headers, secret = sign(AT + off)
        assert is_refused(source, headers, BODY, secret) is refused, off


@pytest.mark.spec("R195")
@pytest.mark.parametrize("time", ["", "soon", "-1", "1e9", "١٧", "9" * 400, f"{AT}.0"])
def test_a_time_that_is_no_number_is_refused(time: str):
    signed = sha256(b"s", f"v0:{time}:".encode() + BODY)
    headers = {"X-Slack-Signature": f"v0={signed}", "X-Slack-Request-Timestamp": time}
    assert is_refused(SLACK, headers, BODY, b"s")
    signed = sha256(b"s", f"{time}.".encode() + BODY)
    assert is_refused(Stripe(), {"Stripe-Signature": f"t={time},v1={signed}"}, BODY, b"s")


@pytest.mark.spec("R196")
def test_any_of_several_v1_signatures_counts_and_v0_never():
    good = stripe().partition("v1=")[2]
    for header, refused in [
        (f"t={AT},v1={'0' * 64},v1={good}", False),
        (f"t={AT},v1={good},v1={'0' * 64},v0={'1' * 64}", False),
        (f"t={AT},v0={good}", True),
        (f"t={AT},v0={good},v1={'0' * 64}", True),
        (f"v1={good}", True),
        (f"t={AT},t={AT},v1={good}", True),
    ]:
        assert is_refused(Stripe(), {"Stripe-Signature": header}, BODY, b"whsec_x") is refused
    headers = standard()
    good = headers["webhook-signature"]
    bad = "v1," + base64.b64encode(b"0" * 32).decode()
    for header, refused in [
        (f"{bad} {good}", False),
        (f"{good} v1a,abc v0,def", False),
        (good.replace("v1,", "v0,"), True),
        (good.replace("v1,", "v1a,"), True),
        ("v1,not base64 at all!", True),
    ]:
        given = headers | {"webhook-signature": header}
        assert is_refused(StandardWebhooks(), given, BODY, KEY.encode()) is refused, header


def test_a_header_full_of_signatures_is_refused():
    good = stripe().partition("v1=")[2]
    header = f"t={AT}" + f",v1={good}" * 33
    assert is_refused(Stripe(), {"Stripe-Signature": header}, BODY, b"whsec_x")


@pytest.mark.spec("R185")
def test_all_pairs_are_compared_and_never_at_different_lengths():
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    good = stripe().partition("v1=")[2]
    with patch("hmac.compare_digest", compare):
        for header in (f"t={AT},v1={good},v1=short", f"t={AT},v1=,v1={'0' * 999}"):
            compared.clear()
            is_refused(Stripe(), {"Stripe-Signature": header}, BODY, b"whsec_x", b"other")
            assert compared == [(32, 32)] * 4
        compared.clear()
        is_refused(Bearer(), {"Authorization": "Bearer x"}, BODY, b"a long secret", b"x")
        assert compared == [(32, 32)] * 2


HEADERS = st.lists(
    st.tuples(
        st.sampled_from([name for _, headers, _, _ in CASES.values() for name in headers]),
        st.one_of(
            st.text(),
            st.sampled_from([v for _, headers, _, _ in CASES.values() for v in headers.values()]),
            st.from_regex(r"(t=\d*|v[01]=\w*|,|v1,\S*| |sha256=\w*|Bearer \S*)*", fullmatch=True),
        ),
    )
)


@given(headers=HEADERS, body=st.binary(), secrets=st.lists(st.binary(max_size=30), max_size=3))
def test_whatever_arrives_the_answer_is_a_verdict(
    headers: list[tuple[str, str]], body: bytes, secrets: list[bytes]
):
    for source, *_ in CASES.values():
        assert status(source, headers, body, secrets) in (200, 401, 500)


# Options and secrets


def test_a_generic_hmac_has_other_digests_and_encodings():
    source = HMAC(header="X-Sign", digest="sha512", encoding="base64", delivery_header="X-Id")
    signature = base64.b64encode(hmac.new(b"s", BODY, hashlib.sha512).digest()).decode()
    headers = {"x-sign": signature, "x-id": "7"}
    assert source.verify(headers, BODY, [b"s"], NOW) == Delivery("7", None)
    with pytest.raises(InvalidOption, match="signed"):
        HMAC(header="x", timestamp="t", signed="{body}")
    with pytest.raises(InvalidOption, match="encoding"):
        HMAC(header="x", encoding="rot13")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="header"):
        HMAC(header="")


def test_secrets_are_checked_and_never_shown():
    with pytest.raises(InvalidOption, match="one of them") as refused:
        StandardWebhooks(secrets=["not-base64!"])
    assert "not-base64" not in str(refused.value)
    with pytest.raises(InvalidOption, match="list"):
        GitHub(secrets="abc")
    assert "canary" not in repr(GitHub(secrets=["canary"]))
    assert "canary" not in repr(HMAC(header="x", secrets=["canary"]))


def test_a_reference_is_resolved_when_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("HOOK_SECRET", "one")
    file = tmp_path / "secret"
    assert value_of("env:HOOK_SECRET") == b"one"
    monkeypatch.setenv("HOOK_SECRET", "two")
    assert resolve("env:HOOK_SECRET") == b"two"
    file.write_bytes(b"three \r\n")
    assert resolve(f"file:{file}") == b"three "
    assert value_of("four") == b"four"
    for missing in ("env:NO_SUCH_NAME", f"file:{tmp_path}/none", f"file:{tmp_path}"):
        with pytest.raises(SecretMissing, match="there is no secret"):
            resolve(missing)


@pytest.mark.parametrize("text", ["canary", "env:", "file: ", "env:A\0B", "ENV:canary"])
def test_what_is_no_reference_is_refused_without_showing_it(text: str):
    with pytest.raises(InvalidOption) as refused:
        check_reference(text)
    assert "canary" not in str(refused.value)
