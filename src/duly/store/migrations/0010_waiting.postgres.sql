-- min_code: 1
-- IS TRUE keeps the planner from using `jobs_hold`. It prefers that index as long as it has no
-- statistics, and would then read and sort all waiting jobs.
DROP INDEX __schema__.jobs_limit;
CREATE INDEX jobs_limit ON __schema__.jobs
    (limit_key, queue, function, limits, priority DESC, scheduled_at, id)
    WHERE limit_key IS NOT NULL AND (hold = 'key') IS TRUE;
