-- min_code: 1
-- Whoever waits for a key gets it by when it was first due: a retry must not lose its turn.
-- Those that wait stand in lines, one for each queue, function and limit: whether a line may
-- start is the same for all who stand in it, so nobody steps over the jobs of a paused queue one by one.
DROP INDEX __schema__.jobs_limit;
CREATE INDEX jobs_limit ON __schema__.jobs
    (limit_key, queue, function, limits, priority DESC, scheduled_at, id)
    WHERE limit_key IS NOT NULL AND hold = 'key';
DROP INDEX __schema__.jobs_limited;
CREATE INDEX jobs_limited ON __schema__.jobs (limit_key, queue, function, run_at)
    WHERE limit_key IS NOT NULL AND state = 'pending' AND hold IS NULL;
