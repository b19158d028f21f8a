-- min_code: 1
-- To check whether the job that a hook waits for still exists.
CREATE INDEX duly_jobs_hook_id ON duly_jobs (hook_id) WHERE hook_id IS NOT NULL;
