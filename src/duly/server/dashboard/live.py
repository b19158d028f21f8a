"""Live events for pages: those of the API, even where the API is not served."""

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from duly.server import events

router = APIRouter()
router.add_api_route(
    "/live", events.events, methods=["GET"], response_class=StreamingResponse, name="live"
)
