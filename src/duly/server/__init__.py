"""The server: an HTTP API, live events, webhooks in, health and metrics.

duly serve                                   # standalone
api.mount("/ops", app.asgi(auth=who))        # inside an application of your own
"""

from duly.model.access import Principal, Scope
from duly.server.asgi import make_asgi

__all__ = ["Principal", "Scope", "make_asgi"]
