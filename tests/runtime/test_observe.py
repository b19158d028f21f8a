"""Who is dead is decided by counting rounds."""

from duly.runtime.liveness import ROUNDS_UNTIL_DEAD, LivenessRounds


def rounds(observer: LivenessRounds, beats: dict[str, int], times: int) -> list[tuple[str, int]]:
    dead: list[tuple[str, int]] = []
    for _ in range(times):
        dead = observer.round(beats)
    return dead


def test_a_worker_whose_beat_stands_still_is_dead_after_eight_counted_rounds() -> None:
    observer = LivenessRounds()
    observer.round({"a": 5})

    assert rounds(observer, {"a": 5}, ROUNDS_UNTIL_DEAD - 1) == []
    assert observer.round({"a": 5}) == [("a", 5)]


def test_one_beat_makes_a_worker_young_again() -> None:
    observer = LivenessRounds()
    rounds(observer, {"a": 5}, ROUNDS_UNTIL_DEAD)
    observer.round({"a": 6})

    assert rounds(observer, {"a": 6}, ROUNDS_UNTIL_DEAD - 1) == []


def test_a_failed_beat_of_the_observer_resets_every_count() -> None:
    observer = LivenessRounds()
    rounds(observer, {"a": 5, "b": 1}, ROUNDS_UNTIL_DEAD)
    observer.reset()

    assert rounds(observer, {"a": 5, "b": 1}, ROUNDS_UNTIL_DEAD - 1) == []


def test_a_worker_that_left_is_forgotten() -> None:
    observer = LivenessRounds()
    rounds(observer, {"a": 5}, ROUNDS_UNTIL_DEAD)
    observer.round({})
    observer.round({"a": 5})

    assert rounds(observer, {"a": 5}, ROUNDS_UNTIL_DEAD - 1) == []
