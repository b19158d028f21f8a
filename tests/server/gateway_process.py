"""A gateway that a test starts as a process; what its handlers do is seen in files."""

import os
import time
from pathlib import Path

from duly.gateway import Gateway

FOLDER = Path(os.environ["GATEWAY_FOLDER"])
gateway = Gateway(
    FOLDER / "crons.db", secret="env:GATEWAY_SECRET" if "GATEWAY_SECRET" in os.environ else None
)


@gateway.handler("touch")
def touch(name: str) -> None:
    with (FOLDER / name).open("a") as file:
        file.write("x")


@gateway.handler("hang")
def hang(name: str) -> None:
    touch(name)
    time.sleep(3600)


@gateway.handler("fail")
async def fail() -> None:
    raise ValueError("no capacity")
