"""Webhooks: which senders are accepted, and how their events are processed.

app.webhook("github", source=GitHub(secrets=["env:GITHUB_SECRET"]), process=on_github)
"""

from duly.model.inbox import EventState
from duly.webhooks.declaration import Webhook
from duly.webhooks.inbox import Received, Retried, WebhookEvent, WebhookPage, Webhooks
from duly.webhooks.sources import (
    HMAC,
    Atlassian,
    Bearer,
    Delivery,
    GitHub,
    Refused,
    Source,
    StandardWebhooks,
    Stripe,
    Svix,
)

__all__ = [
    "HMAC",
    "Atlassian",
    "Bearer",
    "Delivery",
    "EventState",
    "GitHub",
    "Received",
    "Refused",
    "Retried",
    "Source",
    "StandardWebhooks",
    "Stripe",
    "Svix",
    "Webhook",
    "WebhookEvent",
    "WebhookPage",
    "Webhooks",
]
