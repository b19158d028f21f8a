-- min_code: 1
-- So that a hook can be asked whether the job that it waits for is still there.
CREATE INDEX duly_jobs_hook_id ON duly_jobs (hook_id) WHERE hook_id IS NOT NULL;
