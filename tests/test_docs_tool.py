"""tools/docs.py: which links are refused."""

import pytest

from tools import docs

GUIDE = """\
# The guide

## How it works

## How it works

<a id="here"></a>
"""


@pytest.fixture
def check(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/guide.md").write_text(GUIDE)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n")

    def check_readme(text: str) -> list[str]:
        (tmp_path / "README.md").write_text(text)
        code = docs.main(["--root", str(tmp_path)])
        faults: list[str] = capsys.readouterr().err.splitlines()
        assert code == (1 if faults else 0)
        return faults

    return check_readme


@pytest.mark.parametrize(
    "link",
    [
        "[a](docs/guide.md)",
        "[a](docs/guide.md#the-guide)",
        "[a](docs/guide.md#how-it-works-1)",
        "[a](docs/guide.md#here)",
        '[a](docs/guide.md "the guide")',
        "[a](<docs/guide.md>)",
        "[a](docs)",
        "[a](#top)",
        "[a](https://example.org/x#y) and [b](mailto:a@example.org)",
        "[a]: docs/guide.md",
        "`[a](nowhere.md)`",
        "```\n[a](nowhere.md)\n```",
        "~~~~ md\n```\n[a](nowhere.md)\n~~~~",
    ],
)
def test_a_link_that_leads_somewhere_passes(check, link):
    assert check(f"# Top\n\n{link}\n") == []


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("[a](docs/missing.md)", "README.md:3: 'docs/missing.md' does not exist"),
        ("![a](docs/missing.png)", "README.md:3: 'docs/missing.png' does not exist"),
        ("[a]: docs/missing.md", "README.md:3: 'docs/missing.md' does not exist"),
        ("[a](docs/guide.md#gone)", "README.md:3: 'docs/guide.md#gone' has no heading #gone"),
        ("[a](#gone)", "README.md:3: '#gone' has no heading #gone"),
        ("[a](/docs/guide.md)", "README.md:3: '/docs/guide.md' is not relative"),
        ("[a](../other)", "README.md:3: '../other' leads out of the project"),
        ("[a]()", "README.md:3: '' does not exist"),
        ("[a](docs/guide.md) [b](gone.md)", "README.md:3: 'gone.md' does not exist"),
    ],
)
def test_a_link_that_leads_nowhere_is_named(check, link, fault):
    assert check(f"# Top\n\n{link}\n") == [fault]


def test_the_index_lists_pages_and_headings(check, tmp_path, capsys):
    (tmp_path / "README.md").write_text("# Top\n\n```sh\n# no heading\n```\n\n## Start `now`\n")
    assert docs.main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == [
        "README.md",
        "  Top",
        "    Start `now`",
        "CHANGELOG.md",
    ]


def test_a_missing_readme_fails(tmp_path, capsys):
    assert docs.main(["--root", str(tmp_path)]) == 1
    assert "README.md" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("What it does", "what-it-does"),
        ("`make test`: the parts", "make-test-the-parts"),
        ("Jobs & ticks", "jobs--ticks"),
        ("See [the guide](guide.md)", "see-the-guide"),
        ("snake_case", "snake_case"),
    ],
)
def test_anchors_are_githubs(heading, anchor):
    assert docs.slugify(heading) == anchor
