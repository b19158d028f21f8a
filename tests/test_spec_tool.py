"""tools/spec.py: which tests count as proofs of which lines."""

from pathlib import Path
from textwrap import dedent

import pytest

from tools import spec

SPEC = """
# Title

- **R1** The first.
- **R2** The second.
- **R3** The third.
- **R10** The tenth.
- **N1** The new one.
"""


def proven(source: str) -> set[str]:
    return {mark.line for mark in spec.read_marks(dedent(source), "tests/test_x.py")}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/spec.md").write_text(SPEC)
    (tmp_path / "tests").mkdir()
    return tmp_path


def write_test(project: Path, *lines: str, file: str = "tests/test_x.py") -> None:
    path = project / file
    path.parent.mkdir(parents=True, exist_ok=True)
    named = ", ".join(repr(line) for line in lines)
    path.write_text(f"import pytest\n\n@pytest.mark.spec({named})\ndef test_x(): ...\n")


def run(project: Path, *arguments: str) -> int:
    return spec.main(["--root", str(project), *arguments])


def test_a_marked_test_proves_its_lines():
    assert proven(
        """
        @pytest.mark.spec("R1", "N1")
        def test_a(): ...

        @mark.spec("R2")
        async def test_b(): ...
        """
    ) == {"R1", "R2", "N1"}


def test_a_mark_on_a_class_or_module_counts():
    assert proven(
        """
        pytestmark = [pytest.mark.spec("R1"), pytest.mark.torture]

        @pytest.mark.spec("R2")
        class TestA:
            pytestmark = pytest.mark.spec("R3")

            @pytest.mark.spec("R10")
            def test_a(self): ...
        """
    ) == {"R1", "R2", "R3", "R10"}


def test_a_mark_on_a_param_counts():
    assert proven(
        """
        CASES = [pytest.param(1, marks=pytest.mark.spec("R1"))]

        @pytest.mark.parametrize("x", [
            pytest.param(1, marks=pytest.mark.spec("R2")),
            pytest.param(2, marks=[pytest.mark.slow, pytest.mark.spec("R3")]),
            pytest.param(3, marks=[pytest.mark.xfail, pytest.mark.spec("R10")]),
        ])
        def test_a(x): ...
        """
    ) == {"R1", "R2", "R3"}


@pytest.mark.parametrize("off", ["skip", "skip(reason='later')", "xfail", "xfail(strict=True)"])
def test_a_test_that_is_off_proves_nothing(off):
    source = f"""
        @pytest.mark.{off}
        @pytest.mark.spec("R1")
        @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.spec("R1"))])
        def test_a(x): ...

        @pytest.mark.{off}
        class TestB:
            @pytest.mark.spec("R2")
            def test_b(self): ...

        @pytest.mark.spec("R3")
        class TestC:
            @pytest.mark.{off}
            def test_c(self): ...
        """
    assert proven(source) == set()


def test_a_module_that_is_off_proves_nothing():
    source = """
        pytestmark = pytest.mark.skip
        CASES = [pytest.param(1, marks=pytest.mark.spec("R1"))]

        @pytest.mark.spec("R2")
        def test_a(): ...
        """
    assert proven(source) == set()


def test_a_test_that_some_platforms_skip_counts():
    source = """
        @pytest.mark.skipif(WINDOWS, reason="no signals")
        @pytest.mark.spec("R1")
        def test_a(): ...
        """
    assert proven(source) == {"R1"}


def test_a_mark_without_a_test_proves_nothing():
    source = """
        pytestmark = pytest.mark.spec("R1")

        @pytest.mark.spec("R2")
        def helper(): ...

        @pytest.mark.spec("R3")
        class TestEmpty: ...

        TEXT = '@pytest.mark.spec("R10")'
        """
    assert proven(source) == set()


def test_a_mark_on_a_subclass_reaches_the_inherited_tests():
    assert proven("@pytest.mark.spec('R1')\nclass TestSqlite(StoreConformance): ...") == {"R1"}


@pytest.mark.parametrize(
    "marker", ["spec", "spec()", "spec(LINE)", "spec(*LINES)", "spec(37)", "spec(line='R1')"]
)
def test_lines_that_are_no_constants_are_refused(marker):
    with pytest.raises(spec.SpecError, match=r"tests/test_x.py:1"):
        proven(f"@pytest.mark.{marker}\ndef test_a(): ...")


def test_unproven_lines_are_listed_and_counted(project, capsys):
    write_test(project, "R1", "R10")
    write_test(project, "R3", file="src/duly/testing/conformance/claim.py")
    assert run(project) == 0
    assert capsys.readouterr().out.splitlines() == [
        "R2   The second.",
        "N1   The new one.",
        "3 of 5 lines proven, 2 unproven",
    ]


def test_a_scope_with_an_unproven_line_fails(project, capsys):
    write_test(project, "R1", "R3")
    assert run(project, "R1-R3,N1") == 1
    assert capsys.readouterr().out.splitlines() == [
        "R2   The second.",
        "N1   The new one.",
        "2 of 4 lines proven, 2 unproven",
    ]


def test_a_scope_that_is_proven_passes(project):
    write_test(project, "R1", "R2", "R3")
    assert run(project, "R1-R3") == 0


def test_a_mark_for_an_unknown_line_fails(project, capsys):
    write_test(project, "R99")
    assert run(project) == 1
    assert "tests/test_x.py:3: docs/spec.md has no R99" in capsys.readouterr().err


@pytest.mark.parametrize("scope", ["R4", "R3-R1", "R1-N1", "R1-R99", "everything", "R1,,R2"])
def test_a_scope_that_names_no_lines_fails(project, scope, capsys):
    assert run(project, scope) == 1
    assert "scope" in capsys.readouterr().err


def test_a_range_takes_the_lines_that_exist():
    assert spec.read_scope("R2-R10", ["R1", "R2", "R3", "R10", "N1"]) == ["R2", "R3", "R10"]


def test_a_line_written_twice_is_refused():
    with pytest.raises(spec.SpecError, match="R1"):
        spec.read_lines("- **R1** Once.\n- **R1** Twice.\n")


def test_the_specification_has_its_lines():
    lines = spec.read_lines((spec.ROOT / "docs/spec.md").read_text(encoding="utf-8"))
    assert [line for line in lines if line[0] == "R"] == [f"R{n}" for n in range(1, 220)]
    numbers = [int(line[1:]) for line in lines if line[0] == "N"]
    assert numbers == sorted(set(numbers))
