"""The dashboard's static files: styles, scripts and icons, served from the package."""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from duly.server.answers import Refused

router = APIRouter()

YEAR = "public, max-age=31536000, immutable"
SERVED = (".css", ".js", ".svg")


class Asset(NamedTuple):
    content: bytes
    kind: str
    digest: str


@cache
def assets() -> dict[str, Asset]:
    """All static files, by path."""
    return dict(_found(files(__package__ or "") / "static", ""))


def _found(folder: Traversable, path: str) -> list[tuple[str, Asset]]:
    found: list[tuple[str, Asset]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _found(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(SERVED):
            content = entry.read_bytes()
            kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
            digest = hashlib.sha256(content).hexdigest()[:12]
            found.append((path + entry.name, Asset(content, kind, digest)))
    return found


def address(root: str, name: str) -> str:
    """The URL of a file; it changes with the content, so the file can be cached."""
    return f"{root}/static/{name}?v={assets()[name].digest}"


@router.get("/static/{name:path}")
async def static(request: Request, name: str) -> Response:
    asset = assets().get(name)
    if asset is None:
        raise Refused(404, "not_found", "there is no such file")
    current = request.query_params.get("v") == asset.digest
    headers = {"Cache-Control": YEAR if current else "no-cache", "ETag": f'"{asset.digest}"'}
    return Response(asset.content, media_type=asset.kind, headers=headers)
