"""Logging of the command line on standard error."""

from __future__ import annotations

import json
import logging


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("job_id", "function", "attempt", "schedule"):
            if hasattr(record, name):
                fields[name] = getattr(record, name)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_up_logging(log_format: str, log_level: str) -> None:
    """Install the log handler; only the command line does this, never the library."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
