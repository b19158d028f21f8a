"""`duly cron`: an expression in words, its fires, and what clocks do to them."""

from __future__ import annotations

from tests.cli.terminal import Terminal

NEW_YORK = ("--tz", "America/New_York")


def test_words_and_fires(terminal: Terminal) -> None:
    # Neither an app nor a database is needed.
    shown = terminal.run("cron", "0 9 * * 1-5", "--tz", "Europe/Istanbul", "--after", "2026-05-01")
    lines = shown.out.splitlines()
    assert lines[0] == "At 09:00, Monday through Friday (Europe/Istanbul)"
    assert lines[2].split() == ["Europe/Istanbul", "UTC", "from", "now"]
    assert lines[3].startswith("Fri 2026-05-01 09:00:00 +03  2026-05-01 06:00:00Z  ")
    assert lines[4].startswith("Mon 2026-05-04 09:00:00 +03  2026-05-04 06:00:00Z  ")
    assert len(lines) == 3 + 5

    plain = terminal.run("cron", "@hourly", "-n", "1", "--after", "2026-05-01T10:15Z").out
    assert plain.splitlines()[2:] == [plain.splitlines()[2], plain.splitlines()[3]]
    assert "Fri 2026-05-01 11:00:00 UTC" in plain

    # The first may be now; the second never is.
    soon = terminal.run("cron", "* * * * *", "-n", "2").out
    assert " in " in soon
    # The last tick that there can be is long before the last year that a clock shows.
    never = terminal.run("cron", "0 0 29 2 *", "--after", "9997-01-01")
    assert never.out.splitlines() == ["At 00:00, on day 29 of the month, only in February (UTC)"]
    assert never.err == "it does not fire before 9892-03-08, the end of the search\n"
    few = terminal.run("cron", "0 0 1 1 *", "--after", "9890-06-01")
    assert len(few.out.splitlines()) == 3 + 2
    assert few.err == "it does not fire again before 9892-03-08, the end of the search\n"
    # Unquoted, where the shell found no file to put for a star.
    assert "At 09:00" in terminal.run("cron", "0", "9", "1", "1", "1").out


def test_json_is_what_the_api_gives(terminal: Terminal) -> None:
    after = "2026-03-08T00:00-05:00"
    answer = terminal.run("cron", "30 2 * * *", *NEW_YORK, "--after", after, "-n1", "--json").json
    assert answer == {
        "expression": "30 2 * * *",
        "tz": "America/New_York",
        "description": "At 02:30 (America/New_York)",
        "fires": [
            {
                "at": "2026-03-08T07:00:00.000Z",
                "at_ms": 1772953200000,
                "local": "2026-03-08T03:00:00-04:00",
                "dst_adjusted": True,
                "note": "clocks skip its time that day; it fires right after the change",
            }
        ],
    }


def test_changes_of_clocks_are_marked_and_explained(terminal: Terminal) -> None:
    gap = terminal.run("cron", "30 2 * * *", *NEW_YORK, "--after", "2026-03-07", "-n", "3").out
    assert "Sun 2026-03-08 03:00:00 EDT *" in gap
    assert "* Sun 2026-03-08 03:00:00 EDT: clocks skip its time that day" in gap
    fold = terminal.run("cron", "*/30 1 * * *", *NEW_YORK, "--after", "2026-11-01", "-n", "5").out
    assert fold.count("this is the first time") == 2
    assert fold.count("this is the second time") == 2
    # Nothing fires in the gap; the next one says why it is so far away.
    lost = terminal.run("cron", "*/30 2 * * *", *NEW_YORK, "--after", "2026-03-08", "-n", "1").out
    assert "clocks are set forward by 1:00:00 before it" in lost
    narrow = terminal.run("cron", "30 2 * * *", *NEW_YORK, "--after", "2026-03-07", columns=40)
    assert max(map(len, narrow.plain.splitlines())) <= 40
    assert "2026-03-08 03:00:00" in narrow.plain


def test_a_recurrence_rule_is_explained_too(terminal: Terminal) -> None:
    rule = "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO"
    start = ("--start", "2026-03-02T02:30", "--after", "2026-03-01", "-n", "3")
    shown = terminal.run("cron", rule, *NEW_YORK, *start).out
    assert shown.splitlines()[0] == (
        "Every 2 weeks on Monday at 02:30, from 2026-03-02 (America/New_York)"
    )
    assert [line[:20] for line in shown.splitlines()[3:6]] == [
        "Mon 2026-03-02 02:30",
        "Mon 2026-03-16 02:30",
        "Mon 2026-03-30 02:30",
    ]
    whole = f"DTSTART;TZID=Europe/Istanbul:20260302T090000 RRULE:{rule};COUNT=2"
    found = terminal.run("cron", whole, "--after", "2026-01-01", "--json").json
    assert (found["expression"], found["tz"]) == (f"{rule};COUNT=2", "Europe/Istanbul")
    assert [fire["local"][:16] for fire in found["fires"]] == [
        "2026-03-02T09:00",
        "2026-03-16T09:00",
    ]
    assert terminal.run("cron", "FREQ=DAILY", "-n1").out.startswith("Every day at 00:00 (UTC)")
    assert "BYDAY=XX is not valid" in terminal.run("cron", "FREQ=DAILY;BYDAY=XX", code=2).err


def test_a_wrong_expression_is_pointed_at(terminal: Terminal) -> None:
    wrong = terminal.run("cron", "0 61 * * 1-5", code=2)
    assert wrong.err.splitlines() == [
        "duly: '0 61 * * 1-5': hour (at character 3): 61 is not in 0-23; write 0-23",
        "      0 61 * * 1-5",
        "        ^^",
    ]
    assert "it would never fire" in terminal.run("cron", "0 0 30 2 *", code=2).err
    few = terminal.run("cron", "0", "9", "README.md", code=2).err
    assert "3 fields" in few
    assert "quote the expression" in few
    hostile = terminal.run("cron", "\x1b[31m * * * *", code=2)
    assert "\x1b" not in hostile.err
    for arguments in (("-n", "0"), ("--tz", "Mars/Base"), ("--after", "never")):
        assert "Invalid value" in terminal.run("cron", "@daily", *arguments, code=2).err
    assert "EXPRESSION" in terminal.run("cron", code=2).err
