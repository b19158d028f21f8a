"""Imports the `tasks` modules of all installed apps when a worker starts."""

# Django has no type hints.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

from __future__ import annotations

import django
from django.apps import apps
from django.utils.module_loading import autodiscover_modules

if not apps.ready:
    django.setup()
autodiscover_modules("tasks")
