"""Workflows: functions that continue, after any wait or crash, from what they have recorded."""
