"""Terms that the processes and the checks share."""

AT_ONCE = {"solo": 1, "pair": 2}
"""How many bodies of a function may run at once under one key."""
MODES = ("kill", "error", "lost", "pause")
"""What can go wrong at a fault point; see `armed`."""
SAID = "torture was here"
"""Text in errors that were injected on purpose."""
