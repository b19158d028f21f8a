"""Photo albums in FastAPI, with SQLAlchemy's async sessions on asyncpg and background jobs in duly.

An order and its job are committed together, in one PostgreSQL database.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.responses import StreamingResponse

from duly import AsyncCtx, Duly, Retry, Tx
from duly.errors import JobNotFound

URL = os.environ.get("DATABASE_URL", "postgresql://localhost/shop")

app = Duly(URL)
engine = create_async_engine(URL.replace("postgresql://", "postgresql+asyncpg://"))
Session = async_sessionmaker(engine)


# Tables ------------------------------------------------------------------------------------------


class Table(DeclarativeBase):
    pass


class Album(Table):
    __tablename__ = "albums"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    pages: Mapped[int]
    state: Mapped[str] = mapped_column(default="ordered")  # ordered, printed


async def create_tables(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Table.metadata.create_all)


# Background jobs ---------------------------------------------------------------------------------


@app.action(retry=Retry(attempts=3), timeout=600)
async def print_album(ctx: AsyncCtx, album_id: int) -> str:
    """Print page by page. If a worker dies in the middle, another one prints the album again."""
    async with Session() as session:
        album = await session.get_one(Album, album_id)
    for page in range(album.pages):
        await ctx.progress(page / album.pages, f"page {page + 1} of {album.pages}")
        await asyncio.sleep(float(os.environ.get("SECONDS_PER_PAGE", "0")))
    await ctx.call(mark_as_printed, album_id)
    return f"{album.pages} pages for {album.email}"


@app.mutation
def mark_as_printed(tx: Tx, album_id: int) -> None:
    """One transaction, exactly once."""
    tx.execute("UPDATE albums SET state = 'printed' WHERE id = ?", (album_id,))


# The web application -----------------------------------------------------------------------------

web = FastAPI(title="Albums")
web.mount("/ops", app.asgi())  # the dashboard; sign in with a token: duly tokens create


class NewAlbum(BaseModel):
    email: str = Field(pattern=".@.")
    pages: int = Field(ge=1, le=500)


@web.post("/albums", status_code=201)
async def order(new: NewAlbum) -> dict[str, int | str]:
    """Store the album and its job: both or neither."""
    async with Session.begin() as session:
        album = Album(email=new.email, pages=new.pages)
        session.add(album)
        await session.flush()
        job = await app.on(session).run(print_album, album.id)
        if new.email.endswith("@blocked.example"):
            raise HTTPException(403, "we do not print for you")
        return {"album": album.id, "job": job.id}


@web.get("/albums/{album_id}")
async def show(album_id: int) -> dict[str, int | str]:
    async with Session() as session:
        album = await session.get(Album, album_id)
    if album is None:
        raise HTTPException(404, "no such album")
    return {"album": album.id, "state": album.state}


@web.get("/jobs/{job_id}/events")
async def events(job_id: str) -> StreamingResponse:
    """Server-sent events: how far the job is, until it has ended."""
    try:
        await app.aio.job(job_id)
    except JobNotFound:
        raise HTTPException(404, "no such job") from None
    return StreamingResponse(server_sent_events(job_id), media_type="text/event-stream")


async def server_sent_events(job_id: str) -> AsyncIterator[str]:
    async for event in app.aio.watch(job_id):
        data = {"state": event.state, "progress": event.progress, "note": event.note}
        yield f"id: {event.revision}\ndata: {json.dumps(data)}\n\n"


if __name__ == "__main__":
    app.migrate()
    asyncio.run(create_tables(engine))
