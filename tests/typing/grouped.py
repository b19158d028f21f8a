"""Groups, stubs of other services, and handles: typed like the functions of the app itself."""

import sqlite3
from typing import Annotated, Any, assert_type

import aiosqlite
import psycopg
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from duly import (
    AsyncCtx,
    AsyncJob,
    Ctx,
    Duly,
    FunctionInfo,
    FunctionStatus,
    Group,
    Job,
    Redact,
    Tx,
)

app = Duly("sqlite:///:memory:")
billing = Group("billing")


@billing.mutation(aliases=["settle"])
def pay(tx: Tx, invoice: int) -> float:
    session: Session = tx.session
    session.flush()
    return 1.0


@billing.action(internal=True)
async def remind(ctx: AsyncCtx, token: Annotated[str, Redact]) -> bool:
    return True


@app.declare(name="mail.send", kind="action")
def send(to: str, copies: int = 1) -> str:
    raise NotImplementedError


@app.declare
def plain(to: str) -> None:
    raise NotImplementedError


@billing.mutation  # error
def wrong(invoice: int) -> None: ...


def grouped() -> None:
    app.include(billing)
    assert_type(app.run(pay, 7), Job[float])
    assert_type(app.run(remind, "t").result(), bool)
    assert_type(app.run(send, "ada", copies=2), Job[str])
    assert_type(app.run(plain, "ada"), Job[None])
    assert_type(app.functions.status(pay), FunctionStatus)
    assert_type(app.functions.info("billing.pay"), FunctionInfo)
    assert_type(app.functions.delete(pay, by="ada"), int)
    app.run(pay, "7")  # error
    app.run(send, 7)  # error
    app.run(send, "ada", copy=2)  # error
    app.include("billing")  # error
    app.functions.pause(7)  # error


def handles(plain: sqlite3.Connection, pg: psycopg.Connection, session: Session) -> None:
    assert_type(app.on(plain).run(pay, 7), Job[float])
    assert_type(app.on(pg).run_after(5, pay, 7), Job[float])
    assert_type(app.on(session).run(remind, "t"), Job[bool])
    app.on(session).run(pay)  # error
    app.on(7)  # error


async def async_handles(
    lite: aiosqlite.Connection, pg: psycopg.AsyncConnection[Any], session: AsyncSession
) -> None:
    assert_type(await app.on(lite).run(pay, 7), AsyncJob[float])
    assert_type(await app.on(pg).run_after(5, pay, 7), AsyncJob[float])
    assert_type(await app.on(session).run(remind, "t"), AsyncJob[bool])
    await app.on(session).run(pay, "7")  # error
    print(app.on(session).run(pay, 7).id)  # error  # noqa: T201


def direct(ctx: Ctx, tx: Tx) -> None:
    assert_type(pay(tx, 7), float)
    pay(ctx, 7)  # error
