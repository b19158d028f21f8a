"""Files that many processes append to and no kill can tear: one short write for each line."""

import os
from pathlib import Path


class Trace:
    """The files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, file: str, *words: object) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        handle = os.open(self.folder / file, flags, 0o600)
        os.write(handle, (" ".join(map(str, words)) + "\n").encode())
        os.close(handle)

    def size(self, file: str) -> int:
        """How many bytes were written: cheap to ask again and again."""
        path = self.folder / file
        return path.stat().st_size if path.exists() else 0

    def lines(self, file: str) -> list[list[str]]:
        """The words of every line."""
        path = self.folder / file
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
