"""Live events for pages: the API's events, even when the API is not served."""

from fastapi import APIRouter

from duly.server.api.events import api
from duly.server.routes import add_route

router = APIRouter()
add_route(router, api[0], "/live")
