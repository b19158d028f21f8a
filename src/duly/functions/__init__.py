"""What can be called: functions, what workers publish of them, and the jobs that calls become."""
