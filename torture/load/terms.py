"""What the processes and those who judge them agree on."""

AT_ONCE = {"solo": 1, "pair": 2}
"""How many bodies of a function may run at once under one key."""
MODES = ("kill", "error", "lost", "pause")
"""What can go wrong at a fault point; `armed` says how."""
SAID = "torture was here"
"""What an error says that was put there on purpose."""
