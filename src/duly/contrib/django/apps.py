"""The `AppConfig` for INSTALLED_APPS. It has no models: duly manages its own tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Django comes without types.
    AppConfig = object
else:
    from django.apps import AppConfig


class DulyConfig(AppConfig):
    """duly as Django lists it."""

    name: str = "duly.contrib.django"
    label: str = "duly"
    verbose_name: str = "duly"
