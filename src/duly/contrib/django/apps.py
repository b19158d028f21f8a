"""The `AppConfig` for INSTALLED_APPS. It has no models: duly manages its own tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Django has no type hints.
    AppConfig = object
else:
    from django.apps import AppConfig


class DulyConfig(AppConfig):
    """The Django app `duly`."""

    name: str = "duly.contrib.django"
    label: str = "duly"
    verbose_name: str = "duly"
