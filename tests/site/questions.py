"""Questions that newcomers ask, the words they would type, and the page that answers."""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    question: str
    typed: str
    pages: tuple[str, ...]
    """Paths in docs/; any of them answers."""


QUESTIONS = [
    Question(
        "How do I run at most N jobs at a time per customer?",
        "at most n at a time per customer",
        ("how-to/per-customer-limits",),
    ),
    Question("How do I set a rate limit?", "rate limit", ("how-to/limits",)),
    Question(
        "One job per key, debounce, idempotency?",
        "one job per key debounce idempotency",
        ("how-to/limits",),
    ),
    Question("How do I do a zero-downtime deploy?", "zero downtime deploy", ("how-to/upgrading",)),
    Question("Can two versions of my code run?", "two versions of my code", ("how-to/upgrading",)),
    Question(
        "Why does my job not run?",
        "why does my job not run",
        ("quickstart", "how-to/debugging", "faq"),
    ),
    Question("How do I fan out and in?", "fan-out fan-in", ("how-to/chaining-jobs",)),
    Question("How do I chain jobs?", "chain jobs", ("how-to/chaining-jobs",)),
    Question(
        "How do I pass a pydantic model?", "pass a pydantic model", ("how-to/pydantic-models",)
    ),
    Question("Prometheus?", "prometheus", ("how-to/monitoring",)),
    Question("Is there a Grafana dashboard?", "grafana dashboard", ("how-to/monitoring",)),
    Question("Sentry?", "sentry", ("how-to/failure-notifications", "how-to/monitoring", "faq")),
    Question(
        "How do I delete old jobs, or change the retention?",
        "delete old jobs change retention",
        ("how-to/retention",),
    ),
    Question("Docker, Compose?", "docker compose", ("how-to/containers",)),
    Question("Kubernetes?", "kubernetes", ("how-to/containers",)),
    Question("systemd?", "systemd", ("how-to/deploying",)),
    Question(
        "Autoscaling (KEDA)?",
        "autoscaling keda",
        ("how-to/containers", "how-to/monitoring", "how-to/deploying", "faq"),
    ),
    Question(
        "How do I put the dashboard behind SSO?",
        "dashboard behind sso",
        ("how-to/mounting", "how-to/dashboard"),
    ),
    Question("Multi-tenant?", "multi-tenant", ("how-to/multi-tenancy", "how-to/tokens")),
    Question("MySQL?", "mysql", ("faq",)),
    Question("Windows?", "windows", ("faq",)),
    Question(
        "How do I debug locally (breakpoint, pdb)?",
        "debug locally breakpoint pdb",
        ("how-to/debugging", "how-to/testing"),
    ),
    Question(
        "How do I run jobs inline in development?",
        "run jobs inline in development",
        ("how-to/debugging", "how-to/testing", "faq"),
    ),
    Question("Jupyter?", "jupyter", ("faq", "how-to/debugging", "how-to/choosing-how-to-run")),
    Question(
        "Can a job take days?",
        "job that takes days",
        ("faq", "how-to/timeouts", "guarantees", "how-to/from-celery"),
    ),
    Question(
        "CPU-bound work?",
        "cpu-bound work",
        ("how-to/choosing-how-to-run", "how-to/deploying"),
    ),
    Question("How do I cancel a running job?", "cancel a running job", ("how-to/timeouts",)),
    Question(
        "How am I notified when a job fails?",
        "notify me when a job fails",
        ("how-to/failure-notifications", "how-to/monitoring"),
    ),
    Question(
        "Secrets in arguments?",
        "secrets in arguments",
        ("how-to/security", "reference", "faq"),
    ),
    Question("How do I test it with pytest?", "test it with pytest", ("how-to/testing",)),
    Question(
        "Conditions: which values, which operators?",
        "conditions which values operators",
        ("how-to/conditions",),
    ),
    Question(
        "How many connections will it open?",
        "how many connections will it open",
        ("how-to/deploying", "how-to/choosing-how-to-run", "how-to/transactions", "faq"),
    ),
    Question(
        "Job ordering per key (FIFO)?",
        "job ordering per key fifo",
        ("how-to/limits", "how-to/per-customer-limits", "faq"),
    ),
    Question(
        "Dependency injection, a shared client per worker?",
        "dependency injection shared client per worker",
        ("how-to/shared-clients", "how-to/deploying"),
    ),
]
