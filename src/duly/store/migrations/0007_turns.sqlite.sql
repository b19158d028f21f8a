-- min_code: 1
-- Whoever waits for a key gets it by when it was first due: a retry must not lose its turn.
DROP INDEX duly_jobs_limit;
CREATE INDEX duly_jobs_limit ON duly_jobs (limit_key, priority DESC, scheduled_at, id)
    WHERE limit_key IS NOT NULL AND hold = 'key';
