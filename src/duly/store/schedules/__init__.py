"""Schedules and their calendars in the store.

`tick` decides the schedules that are due, based on `facts`. `runs` holds manual runs and backfills.
Both write to the `ledger`. `parked` handles schedules that cannot be decided, `data` and
`calendars` what users store and change, `zone_data` and `retention` automatic maintenance. The
`kill_switch` stops everything. `audit` records who did what.
"""
