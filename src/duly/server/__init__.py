"""The server: HTTP API, dashboard, live events, incoming webhooks, health and metrics.

duly serve                                   # standalone
api.mount("/ops", app.asgi(auth=who))        # mounted in your own application
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.model.access import Principal, Scope

if TYPE_CHECKING:
    from duly.server.asgi import make_asgi as make_asgi

__all__ = ["Principal", "Scope", "make_asgi"]


def __getattr__(name: str) -> Any:
    """Load the web framework only when it is needed: the operations under `api` do not need it."""
    if name == "make_asgi":
        from duly.server.asgi import make_asgi

        return make_asgi
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
