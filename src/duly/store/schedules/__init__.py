"""Schedules and their calendars in the store.

`ticking` decides the schedules that are due, by `facts`; `runs` are those that no trigger asked
for. Both write to the `ledger`. `parked` holds what cannot be decided, `data` and `calendars` what
people store and change, `zone_data` and `retention` what happens by itself. The `kill_switch`
stops all of it. `audit` says who did what.
"""
