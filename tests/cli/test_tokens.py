"""`duly tokens`: made, listed and revoked; a secret is printed once."""

import pytest

from duly.clock import to_ms
from tests.cli.places import Place
from tests.jobs.support import on_sqlite


@pytest.mark.spec("R161")
def test_tokens_are_made_listed_and_revoked(place: Place) -> None:
    scopes = ["--scope", "read", "--scope", "enqueue"]
    made = place.duly("tokens", "create", "ci", *scopes, "--owner", "ann", "--expires", "+90d")
    secret = made.out.strip()
    # Nothing but the secret is on standard output, so that a shell can take it.
    assert made.out == f"{secret}\n"
    assert "shown only once" in made.err
    principal = place.app.tokens.check(secret)
    assert principal is not None
    assert (principal.owner, {str(scope) for scope in principal.scopes}) == (
        "ann",
        {"read", "enqueue"},
    )
    [token] = [each for each in place.app.tokens.list() if each.name == "ci"]
    assert token.expires is not None
    days = (to_ms(token.expires) - place.app.clock.now()) / 86_400_000
    assert 89.9 < days <= 90

    abroad = ["--scope", "admin", "--tz", "Asia/Tokyo", "--json"]
    other = place.duly("tokens", "create", "other", *abroad).json
    assert other["tz"] == "Asia/Tokyo"
    nowhere = place.duly("tokens", "create", "x", *abroad[:2], "--tz", "Nowhere/Land", code=2)
    assert "Nowhere/Land" in nowhere.err
    assert place.app.tokens.check(other["secret"]) is not None
    listed = place.duly("tokens", "list", columns=100)
    assert "ci" in listed.plain
    assert secret not in place.duly("tokens", "list", "--json").out
    assert [each["name"] for each in place.duly("tokens", "list", "--owner", "ann", "--json").json]

    assert "did you mean 'ci'?" in place.duly("tokens", "revoke", "cii", code=1).err
    assert "--force" in place.duly("tokens", "revoke", "ci", code=1).err
    place.duly("tokens", "revoke", "ci", columns=80, keys=[("Revoke token 'ci'", "n\n")], code=1)
    assert place.app.tokens.check(secret) is not None
    assert place.duly("tokens", "revoke", "ci", "--force").out == "ci was revoked\n"
    assert place.app.tokens.check(secret) is None
    place.duly("tokens", "revoke", other["id"], "--force")
    names = [each["name"] for each in place.duly("tokens", "list", "--json").json]
    assert not {"ci", "other"} & set(names)
    assert "revoked" in place.duly("tokens", "list", "--all").out


@on_sqlite
def test_what_is_not_clear_is_refused(place: Place) -> None:
    assert "--scope" in place.duly("tokens", "create", "x", code=2).err
    wrong = place.duly("tokens", "create", "x", "--scope", "all", code=2)
    assert "'read'" in wrong.err
    for _ in range(2):
        place.app.tokens.create("twin", ["read"])
    twins = place.duly("tokens", "revoke", "twin", "--force", code=1)
    assert "give an id" in twins.err
