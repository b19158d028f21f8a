-- min_code: 1
-- To check whether the job that a hook waits for still exists.
CREATE INDEX jobs_hook ON __schema__.jobs (hook_id) WHERE hook_id IS NOT NULL;
