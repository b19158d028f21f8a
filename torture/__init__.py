"""Torture: `make torture` stresses duly for a chosen time and prints what it counted.

`load` is the scene: real processes on a real database under load, a director who kills, stops and
cuts, and checkers that read the histories afterwards. `measures` are the rows of the table; `run`
shares the time out among them.
"""
