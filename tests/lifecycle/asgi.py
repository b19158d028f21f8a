"""A Starlette application on the shop of tests/cli: `/touch/a` is `app.run(touch, "a")`."""

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.cli.shop import app


async def enqueue(request: Request) -> JSONResponse:
    name, *args = request.path_params["call"].split("/")
    job = await app.aio.run(app.function(name), *args)
    return JSONResponse({"job": job.id, "pid": os.getpid()})


web = Starlette(routes=[Route("/{call:path}", enqueue)], lifespan=app.lifespan)
