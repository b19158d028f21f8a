"""Questions that newcomers ask, the words they would type, and the section that answers."""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    question: str
    typed: str
    page: str
    """The page that answers: its path in docs/, without `.md`."""

    section: str = ""
    """The anchor of the section that answers, or nothing for the whole page."""


QUESTIONS = [
    Question(
        "How do I run at most N jobs at a time per customer?",
        "at most n at a time per customer",
        "how-to/per-customer-limits",
        "at-most-n-jobs-at-a-time-per-customer",
    ),
    Question("How do I set a rate limit?", "rate limit", "how-to/limits", "rate-limits"),
    Question(
        "One job per key, debounce, idempotency?",
        "one job per key, debounce, idempotency",
        "how-to/limits",
    ),
    Question("How do I do a zero-downtime deploy?", "zero downtime deploy", "how-to/upgrading"),
    Question(
        "Can two versions of my code run?",
        "two versions of my code",
        "how-to/upgrading",
        "run-two-versions-of-your-code-side-by-side",
    ),
    Question(
        "Why does my job not run?",
        "why does my job not run",
        "how-to/debugging",
        "see-why-a-job-does-not-start",
    ),
    Question("How do I fan out and in?", "fan-out/fan-in", "how-to/fan-out"),
    Question("How do I pass a result to the next job?", "pass results", "how-to/passing-results"),
    Question("What are workflows?", "workflows", "concepts/workflows"),
    Question(
        "How do I wait for an approval?",
        "wait for an approval",
        "how-to/waiting-for-people-and-events",
        "ask-a-person",
    ),
    Question("How do I test a workflow?", "test workflows", "how-to/testing-workflows"),
    Question(
        "How do I chain jobs?", "chain jobs", "how-to/chaining-jobs", "run-a-job-after-another"
    ),
    Question("How do I pass a pydantic model?", "pass a pydantic model", "how-to/pydantic-models"),
    Question("Does it work with Prometheus?", "Prometheus", "how-to/monitoring", "prometheus"),
    Question(
        "Is there a Grafana dashboard?",
        "Grafana dashboard",
        "how-to/monitoring",
        "grafana-dashboard",
    ),
    Question("Does it work with Sentry?", "Sentry", "how-to/monitoring", "sentry"),
    Question(
        "How do I delete old jobs, or change the retention?",
        "delete old jobs, change retention",
        "how-to/retention",
    ),
    Question(
        "How do I run it with Docker Compose?",
        "Docker, Compose",
        "how-to/containers",
        "docker-compose",
    ),
    Question("How do I run it on Kubernetes?", "Kubernetes", "how-to/containers", "kubernetes"),
    Question("How do I run it with systemd?", "systemd", "how-to/deploying", "systemd"),
    Question(
        "How does it scale automatically (KEDA)?",
        "autoscaling (KEDA)",
        "how-to/containers",
        "autoscaling-with-keda",
    ),
    Question(
        "How do I put the dashboard behind SSO?",
        "dashboard behind SSO",
        "how-to/mounting",
        "single-sign-on-sso",
    ),
    Question("Is it multi-tenant?", "multi-tenant", "how-to/multi-tenancy"),
    Question("Does it work with MySQL?", "MySQL?", "faq", "does-duly-support-mysql"),
    Question("Does it run on Windows?", "Windows?", "faq", "does-it-run-on-windows"),
    Question(
        "How do I debug locally (breakpoint, pdb)?",
        "debug locally (breakpoint, pdb)",
        "how-to/debugging",
    ),
    Question(
        "How do I run jobs inline in development?",
        "run jobs inline in development",
        "how-to/testing",
        "run-jobs-inline-in-development-and-debug-them-with-pdb",
    ),
    Question(
        "Does it work in Jupyter?", "Jupyter", "how-to/debugging", "debug-in-jupyter-notebooks"
    ),
    Question("Can a job take days?", "job that takes days", "faq", "can-a-job-take-days"),
    Question(
        "How do I run CPU-bound work?",
        "CPU-bound work",
        "how-to/choosing-how-to-run",
        "cpu-bound-jobs-more-processes",
    ),
    Question(
        "How do I cancel a running job?",
        "cancel a running job",
        "how-to/timeouts",
        "cancel-a-job",
    ),
    Question(
        "How am I notified when a job fails?",
        "notify me when a job fails",
        "how-to/failure-notifications",
    ),
    Question(
        "How do I hide secrets in arguments?",
        "secrets in arguments",
        "how-to/security",
        "secrets-in-job-arguments",
    ),
    Question("How do I test it with pytest?", "test it with pytest", "how-to/testing"),
    Question(
        "Which values and operators can conditions use?",
        "conditions: which values, operators",
        "how-to/conditions",
        "available-values",
    ),
    Question(
        "How many connections will it open?",
        "how many connections will it open",
        "how-to/deploying",
        "how-many-database-connections",
    ),
    Question(
        "Are jobs of a key run in order (FIFO)?",
        "job ordering per key (FIFO)",
        "how-to/per-customer-limits",
        "one-at-a-time-in-order-fifo-per-key",
    ),
    Question(
        "How do I share a client per worker (dependency injection)?",
        "dependency injection, shared client per worker",
        "how-to/shared-clients",
    ),
]
