"""Functions that are written apart from the app, renamed, or known only by name."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from duly import Ctx, Duly, FunctionInfo, Group, ManualClock, Retry, State, Tx
from duly.errors import (
    FunctionConflict,
    InvalidArgument,
    InvalidFunction,
    InvalidOption,
    UnknownFunction,
)
from tests.jobs.support import Database, Hire, tidy


@pytest.fixture
def other(url: str, app: Duly, clock: ManualClock):
    """Another service on the same database, without the code of the first."""
    service = Duly(url, name="other", clock=clock)
    yield service
    service.close()


# Groups


def test_a_group_brings_its_functions_under_its_name(app: Duly, hire: Hire):
    billing = Group("billing")

    @billing.action
    def send(ctx: Ctx, invoice: int) -> str:
        return f"sent {invoice}"

    app.include(billing)

    @billing.mutation(name="pay")
    def settle(tx: Tx) -> None: ...  # defined after the group was included

    assert list(app.functions) == ["billing.send", "billing.pay"]
    assert app.function("billing.send") is send
    job = app.run(send, 7)
    hire().work()
    assert (job.function, job.result(0)) == ("billing.send", "sent 7")


def test_a_function_of_a_group_that_is_not_included_is_unknown(app: Duly):
    billing = Group("billing")

    @billing.action
    def send(ctx: Ctx) -> None: ...

    with pytest.raises(UnknownFunction, match=r"billing\.send"):
        app.run(send)


def test_one_group_serves_two_apps_and_including_it_twice_changes_nothing(app: Duly, other: Duly):
    billing = Group("billing")

    @billing.action
    def send(ctx: Ctx) -> None: ...

    for service in (app, other, app):
        service.include(billing)
    assert app.run(send).function == other.run(send).function == "billing.send"


@pytest.mark.parametrize("name", ["", "a.b", "a\nb", 7])
def test_a_group_needs_a_plain_name(name):
    with pytest.raises(InvalidOption, match="name"):
        Group(name)


def test_two_groups_cannot_claim_one_name(app: Duly):
    def make() -> Group:
        group = Group("billing")

        @group.action
        def send(ctx: Ctx) -> None: ...

        return group

    def make_another() -> Group:
        group = Group("billing")

        @group.action(name="send")
        def send_else(ctx: Ctx) -> None: ...

        return group

    app.include(make())
    with pytest.raises(FunctionConflict, match=r"billing\.send"):
        app.include(make_another())


def test_a_function_that_the_app_refuses_is_not_kept_by_the_group(app: Duly, other: Duly):
    @app.action(name="billing.send")
    def taken(ctx: Ctx) -> None: ...

    billing = Group("billing")
    app.include(billing)
    with pytest.raises(FunctionConflict):

        @billing.action
        def send(ctx: Ctx) -> None: ...

    other.include(billing)
    assert list(other.functions) == []


# Imports


def test_modules_in_imports_are_imported_when_a_worker_starts(
    url: str, app: Duly, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "shop_main.py").write_text(
        "import sys\nfrom duly import Duly\n"
        "app = Duly(sys.argv[1], imports=['shop_tasks'])\n"
        "if __name__ == '__main__':\n"
        "    with app:\n"
        "        print(app.run(app.function('greet'), name='Ada').result(20))\n"
    )
    (tmp_path / "shop_tasks.py").write_text(
        "from __main__ import app\nfrom duly import Ctx\n"
        "@app.action\n"
        "def greet(ctx: Ctx, name: str) -> str:\n    return 'Hello, ' + name\n"
    )
    done = subprocess.run(
        [sys.executable, "shop_main.py", url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "Hello, Ada\n"), done.stderr


def test_a_module_that_cannot_be_imported_stops_the_start(url: str, app: Duly):
    broken = Duly(url, imports=["no_such_module_of_anybody"])
    with pytest.raises(InvalidOption, match="imports: there is no module 'no_such_module_of_any"):
        broken.start()
    broken.close()
    importlib.invalidate_caches()


# Aliases


@pytest.mark.spec("N8")
def test_an_alias_runs_what_was_stored_under_the_old_name(
    app: Duly, other: Duly, hire: Hire, clock: ManualClock
):
    @app.action(name="send_mail")
    def old(ctx: Ctx, to: str) -> None: ...

    waiting = app.run(old, "ada")
    tidy(app)
    assert [(held.hold, held.function) for held in app.held()] == [("function", "send_mail")]

    @other.action(aliases=["send_mail", "mail"])
    def send_letter(ctx: Ctx, to: str) -> str:
        return f"letter to {to}"

    by_old_name = other.run(other.function("mail"), to="bob")
    hire(other).work()
    assert waiting.result(0) == "letter to ada"
    assert by_old_name.result(0) == "letter to bob"
    assert other.function("send_mail") is send_letter
    assert app.held() == []


def test_canceling_a_function_also_cancels_what_waits_under_its_old_name(app: Duly, other: Duly):
    @app.action(name="send_mail")
    def old(ctx: Ctx) -> None: ...

    waiting = app.run(old)

    @other.action(aliases=["send_mail"])
    def send_letter(ctx: Ctx) -> None: ...

    other.run(send_letter)
    assert other.cancel_all(send_letter) == 2
    assert waiting.state == State.CANCELED


def test_an_alias_that_is_somebodys_name_is_refused(app: Duly):
    @app.action
    def first(ctx: Ctx) -> None: ...

    with pytest.raises(FunctionConflict, match="first"):

        @app.action(aliases=["first"])
        def second(ctx: Ctx) -> None: ...

    assert list(app.functions) == ["first"]
    with pytest.raises(InvalidOption, match="aliases"):
        app.action(aliases="first")
    with pytest.raises(InvalidOption, match="is the function's own name"):

        @app.action(aliases=["same"])
        def same(ctx: Ctx) -> None: ...


# By name, without the code


def test_a_service_without_the_code_calls_by_name(app: Duly, other: Duly, hire: Hire):
    @app.action(queue="mail", priority=7, retry=Retry(attempts=3), timeout=60, tags=["x"])
    def send(ctx: Ctx, to: str, copies: int = 1) -> str:
        return to * copies

    worker = hire()
    job = other.run(other.function("send"), to="ab", copies=2)
    record = job.record
    assert (record.queue, record.priority, record.timeout_ms) == ("mail", 7, 60_000)
    assert (record.retry, record.tags) == ('{"attempts":3}', '["x"]')
    worker.work()
    assert job.result(0) == "abab"
    urgent = other.run(other.function("send").using(priority=9, retry=None), to="a")
    assert (urgent.record.priority, urgent.record.queue, urgent.record.retry) == (9, "mail", None)


@pytest.mark.spec("R69")
@pytest.mark.parametrize(
    ("arguments", "argument", "reason"),
    [
        ({}, "to", "missing"),
        ({"to": 7}, "to", "expected string, got integer"),
        ({"to": "a", "items": [{"price": "x"}]}, "items", r"number.* at `items\[0\]\.price`"),
        ({"to": "a", "cc": "b"}, "cc", "unexpected"),
        ({"to": "a", "items": float("nan")}, "items", "not a JSON number"),
        ({"to": object()}, "to", "cannot be stored"),
    ],
)
def test_a_call_by_name_is_checked_against_the_published_schema(
    app: Duly, other: Duly, hire: Hire, db: Database, arguments, argument, reason
):
    @app.action
    def send(ctx: Ctx, to: str, items: list[dict[str, float]] | None = None) -> None: ...

    hire()
    with pytest.raises(InvalidArgument, match=reason) as refusal:
        other.run(other.function("send"), **arguments)
    assert refusal.value.argument == argument
    assert db.count("@jobs") == 0


@pytest.mark.spec("R69")
def test_a_name_that_nobody_published_is_unknown(app: Duly, other: Duly, db: Database):
    @app.action
    def send(ctx: Ctx) -> None: ...

    for name in ("send", "sned"):
        with pytest.raises(UnknownFunction, match=name):
            other.function(name)
    assert db.count("@jobs") == 0


@pytest.mark.spec("N24")
def test_an_old_process_that_restarts_beside_a_new_one_changes_nothing(
    app: Duly, other: Duly, hire: Hire, url: str
):
    @app.action
    def send(ctx: Ctx, to: str) -> None: ...

    hire()
    newer = Duly(url, clock=app.clock)

    @newer.action(name="send")
    def send_two(ctx: Ctx, to: str, subject: str) -> None: ...

    worker = hire(newer)
    with pytest.raises(InvalidArgument, match="subject"):
        other.run(other.function("send"), to="ada")
    other.run(other.function("send"), to="ada", subject="hi")
    worker.stop()
    newer.close()

    hire(app)  # an old pod
    with pytest.raises(InvalidArgument, match="subject"):
        other.run(other.function("send"), to="ada")
    app.functions.publish()  # a roll-back, on purpose
    other.run(other.function("send"), to="ada")


@pytest.mark.spec("N24")
def test_another_app_with_a_function_of_that_name_does_not_redefine_it(
    app: Duly, other: Duly, hire: Hire
):
    @app.action
    def send(ctx: Ctx, to: str) -> None: ...

    @other.action(name="send")
    def send_else(ctx: Ctx, number: int) -> None: ...

    hire(app)
    hire(other)
    info = other.functions.info("send")
    assert (info.app, '"to"' in info.schema) == ("default", True)


# Declared


def test_a_declared_function_is_called_like_any_other(app: Duly, other: Duly, hire: Hire):
    @app.mutation(name="billing.pay", queue="money")
    def pay(tx: Tx, invoice: int, amount: float = 1.0) -> float:
        return invoice * amount

    worker = hire()

    @other.declare(name="billing.pay")
    def declared(invoice: int, amount: float = 1.0) -> float:
        raise NotImplementedError

    first = other.run(declared, 7, amount=2.0)
    (second,) = other.run_many([declared.bind(3)])
    assert (first.record.kind, first.record.queue) == ("mutation", "money")
    worker.work()
    assert (first.result(0), second.result(0)) == (14.0, 3.0)
    assert "billing.pay" not in other.functions, "nothing that this service could run"


def test_a_declaration_that_no_longer_fits_is_refused_by_what_is_published(
    app: Duly, other: Duly, hire: Hire, db: Database
):
    @app.action
    def send(ctx: Ctx, to: str, subject: str) -> None: ...

    hire()

    @other.declare(name="send")
    def declared(to: int) -> None: ...

    with pytest.raises(InvalidArgument, match="to"):
        other.run(declared, "seven")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"send\(\): argument 'subject': missing"):
        other.run(declared, 7)
    assert db.count("@jobs") == 0


def test_a_declaration_with_a_kind_can_be_called_before_any_worker_started(
    app: Duly, other: Duly, hire: Hire
):
    @other.declare
    def send(to: str) -> str:
        raise NotImplementedError

    with pytest.raises(UnknownFunction, match="no worker has published it yet"):
        other.run(send, "ada")

    @other.declare(kind="action")
    def send_early(to: str) -> str:
        raise NotImplementedError

    early = other.run(send_early, "ada")

    @app.action(name="send_early")
    def code(ctx: Ctx, to: str) -> str:
        return to

    hire().work()
    assert early.result(0) == "ada"


def test_what_cannot_be_declared_is_refused(app: Duly):
    async def stub() -> None: ...

    for wrong in (stub, lambda: None, 7):
        with pytest.raises(InvalidFunction):
            app.declare(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="kind"):
        app.declare(kind="query")


def test_many_calls_of_a_declared_function_ask_for_it_once(
    app: Duly, other: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    @app.action
    def send(ctx: Ctx, to: str) -> None: ...

    hire()

    @other.declare(name="send")
    def declared(to: str) -> None: ...

    asked: list[str] = []
    function = other.store.function

    def ask(name: str) -> FunctionInfo | None:
        asked.append(name)
        return function(name)

    monkeypatch.setattr(other.store, "function", ask)
    assert len(other.run_many(declared.bind(str(n)) for n in range(20))) == 20
    assert asked == ["send"]


def test_a_worker_does_not_claim_what_it_only_declares(app: Duly, other: Duly, hire: Hire):
    @app.action
    def send(ctx: Ctx, to: str) -> None: ...

    hire().stop()

    @other.declare(name="send")
    def declared(to: str) -> None: ...

    @other.action
    def own(ctx: Ctx) -> None: ...

    job = other.run(declared, "ada")
    hire(other).work()
    assert job.state == State.PENDING
