"""What duly brings into somebody's environment is what was decided, and nothing else."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
# docs/how-to/security.md lists them too.
ALLOWED = {
    "": {"msgspec", "tzdata"},
    "cli": {"click", "rich"},
    "postgres": {"psycopg[binary,pool]"},
    "http": {"httpx2"},
    "server": {"duly[cli,http]", "fastapi", "jinja2", "uvicorn"},
    "holidays": {"holidays"},
}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~; ]", requirement)[0] for requirement in requirements}


def test_the_dependencies_are_those_that_were_decided_on():
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    found = {"": project["dependencies"]} | {k: v for k, v in extras.items() if k != "dev"}
    assert {extra: names(given) for extra, given in found.items()} == ALLOWED


def test_the_page_on_security_names_each():
    page = (PROJECT.parent / "docs/how-to/security.md").read_text()
    for each in set[str]().union(*ALLOWED.values()):
        assert f"`{each.partition('[')[0]}`" in page or f"`{each}`" in page
