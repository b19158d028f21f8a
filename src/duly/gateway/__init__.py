"""Gateways: runtimes with their own crons, and the bridge that manages those crons.

`Gateway` is the server: handlers, a store and a REST API, run by `duly gateways serve`.
`BridgeClient` is the client; `app.gateways` registers gateways by name.
"""

from duly.gateway.bridge import AsyncBridgeClient, BridgeClient
from duly.gateway.crons import CronPage, GatewayCron, RemoveAnswer, RunAnswer
from duly.gateway.runtime import Gateway
from duly.gateway.verbs import AsyncGateways, Gateways, RegisteredGateway

__all__ = [
    "AsyncBridgeClient",
    "AsyncGateways",
    "BridgeClient",
    "CronPage",
    "Gateway",
    "GatewayCron",
    "Gateways",
    "RegisteredGateway",
    "RemoveAnswer",
    "RunAnswer",
]
