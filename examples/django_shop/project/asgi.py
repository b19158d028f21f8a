"""ASGI entry point, for Uvicorn and other servers. Staff find duly's dashboard under /ops/."""

import os

from django.core.asgi import get_asgi_application

from duly.contrib.django import asgi

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
application = asgi(get_asgi_application(), prefix="/ops")
