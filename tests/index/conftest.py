import logging
from collections.abc import Iterator

import pytest

from tests.index.support import Index, Place


@pytest.fixture
def place(url: str) -> Place:
    """A database with nothing in it, once on each kind."""
    is_sqlite = url.startswith("sqlite")
    return Place(is_sqlite, url.removeprefix("sqlite:///") if is_sqlite else url)


@pytest.fixture
def index(place: Place) -> Iterator[Index]:
    index = place.open()
    yield index
    index.close()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What duly.index has warned of, as it grows."""
    said: list[str] = []

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                said.append(record.getMessage())

    logger, handler = logging.getLogger("duly.index"), Listen()
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)
