-- min_code: 1
-- Waiting jobs get a limit key in the order in which they were first due: a retry must not lose its
-- turn. They wait in lines, one for each queue, function and limit. Either every job in a line may
-- start or none may, so the jobs of a paused queue do not have to be skipped one by one.
DROP INDEX duly_jobs_limit;
CREATE INDEX duly_jobs_limit ON duly_jobs
    (limit_key, queue, function, limits, priority DESC, scheduled_at, id)
    WHERE limit_key IS NOT NULL AND hold = 'key';
DROP INDEX duly_jobs_limited;
CREATE INDEX duly_jobs_limited ON duly_jobs (limit_key, queue, function, run_at)
    WHERE limit_key IS NOT NULL AND state = 'pending' AND hold IS NULL;
