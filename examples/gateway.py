"""A gateway that runs three crons, managed from an app in another process.

Run it with: python examples/gateway.py
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

from duly import Cron, Duly, every
from duly.gateway import Gateway

FOLDER = os.environ.get("EDGE") or tempfile.mkdtemp()  # passed on to the gateway's process
os.environ.setdefault("EDGE_SECRET", "only-for-this-example")

# The gateway: `duly gateways serve examples/gateway.py:gateway` --------------------------------

gateway = Gateway(f"sqlite:///{FOLDER}/crons.db", secret="env:EDGE_SECRET", name="edge")
models = {"small"}
cache = {"answer": 42}


@gateway.handler("refresh-capabilities")
def refresh_capabilities() -> None:
    models.update({"small", "large"})  # ask the machine which models it has


@gateway.handler("health-probe", timeout=5)
async def health_probe(url: str) -> None:
    if not url.startswith("https://"):
        raise ValueError(f"{url} is not encrypted")  # shown as the cron's last error


@gateway.handler("maintenance")
def maintenance(clear_caches: bool, rotate_credentials: bool) -> None:
    if clear_caches:
        cache.clear()
    if rotate_credentials:
        time.sleep(0.1)


gateway.declare("refresh-capabilities", every(minutes=15))
gateway.declare("health-probe", every(minutes=1), payload={"url": "http://models.internal"})
gateway.declare(
    "maintenance",
    Cron("30 3 * * 7", tz="Europe/Istanbul"),
    payload={"clear_caches": True, "rotate_credentials": True},
)

# The app that manages it -----------------------------------------------------------------------

app = Duly(f"sqlite:///{FOLDER}/app.db")


def start_gateway() -> tuple[subprocess.Popen[str], str]:
    """Start `duly gateways serve` on a free port; the first line of its output has the URL."""
    command = [sys.executable, "-m", "duly", "gateways", "serve", f"{__file__}:gateway"]
    environment = {**os.environ, "EDGE": FOLDER}
    process = subprocess.Popen(
        [*command, "--port=0"], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    greeting = process.stderr.readline()
    return process, greeting.split()[3].rstrip(";")


def main() -> None:
    app.migrate()
    process, url = start_gateway()
    try:
        app.gateways.add("edge", url, secret="env:EDGE_SECRET", by="ops")
        crons = app.gateways.crons("edge").crons
        for cron in crons:
            assert app.gateways.cron_run("edge", cron.id, by="ops").ran
        while any(cron.last_status is None for cron in app.gateways.crons("edge").crons):
            time.sleep(0.01)
        print("The crons of the gateway, after each was run once by hand:")
        show()
    finally:
        process.terminate()
        process.communicate()
    print("The gateway has stopped. Its last known state is still listed, and marked as stale:")
    show()
    app.close()
    shutil.rmtree(FOLDER)


def show() -> None:
    for row in app.observe.schedules(tz="Europe/Istanbul").rows:
        zone = row.tz or "UTC"
        mark = "  (stale)" if row.stale_since else ""
        print(f"  {row.resource:<26} {row.words:<40} {zone:<16} {row.last_status}{mark}")


if __name__ == "__main__":
    main()
