"""Endpoints: addresses that jobs and schedules POST to."""

from duly.endpoints.target import EndpointTarget
from duly.endpoints.verbs import Endpoints
from duly.endpoints.views import Delivered, Endpoint
from duly.model.endpoint import Dispatch

__all__ = ["Delivered", "Dispatch", "Endpoint", "EndpointTarget", "Endpoints"]
