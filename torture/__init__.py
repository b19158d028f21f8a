"""Torture tests: `make torture` stresses duly for a chosen time and prints the results.

`load` is the scene: real processes on a real database under load, a director that kills, stops and
disconnects them, and checkers that read the histories afterwards. `measures` are the rows of the
table; `run` divides the time between them.
"""
