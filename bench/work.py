"""A worker process as `duly worker` runs it: `python -m bench.work URL MARKS CONCURRENCY`.

It prints a line when it is ready and ends when its standard input does, so it never outlives its
parent.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.app import make_app
from bench.marks import Marks
from duly.runtime.collector import look_less_often


def main(url: str, marks: str, concurrency: str) -> None:
    app = make_app(url, Marks(Path(marks))).app
    look_less_often()
    # Otherwise sync actions would be measured with the default of 10 threads.
    app.start(concurrency=int(concurrency), threads=int(concurrency))
    print("ready", flush=True)
    sys.stdin.read()
    app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
