"""The tests of schedules stand on the fixtures of those of jobs."""

from tests.jobs.conftest import (
    app,
    clock,
    db,
    hire,
    migrated_database,
    migrated_file,
    postgres_repeatable_read_url,
    postgres_serializable_url,
    postgres_url,
    reused_database,
    stricter_databases,
)

__all__ = [
    "app",
    "clock",
    "db",
    "hire",
    "migrated_database",
    "migrated_file",
    "postgres_repeatable_read_url",
    "postgres_serializable_url",
    "postgres_url",
    "reused_database",
    "stricter_databases",
]
