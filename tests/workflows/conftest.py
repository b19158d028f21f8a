"""The databases of these tests are migrated and have a table `notes`."""

import pytest


@pytest.fixture
def postgres_url(postgres_with_notes: str) -> str:
    return postgres_with_notes
