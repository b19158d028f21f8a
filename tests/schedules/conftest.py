"""The tests of schedules stand on the fixtures of those of jobs."""

from tests.jobs.conftest import (
    app,
    clock,
    db,
    hire,
    migrated_database,
    migrated_file,
    postgres_url,
    reused_database,
)

__all__ = [
    "app",
    "clock",
    "db",
    "hire",
    "migrated_database",
    "migrated_file",
    "postgres_url",
    "reused_database",
]
