"""duly as a Django app: `"duly.contrib.django"` in INSTALLED_APPS.

`app` is the project's duly app, in Django's database; it is created on first access. `atomic(tx)`
lets the ORM take part in the transaction of a mutation. `asgi` serves the dashboard to the
project's staff.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from duly.contrib.django.orm import atomic
from duly.contrib.django.server import asgi

if TYPE_CHECKING:
    from duly.contrib.django.project import App

    app: App

__all__ = ["app", "asgi", "atomic"]

_making = threading.Lock()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from duly.contrib.django.project import make_app

    with _making:
        if "app" not in globals():
            globals()["app"] = make_app()
    return globals()["app"]
