-- min_code: 1
-- So that a hook can be asked whether the job that it waits for is still there.
CREATE INDEX jobs_hook ON __schema__.jobs (hook_id) WHERE hook_id IS NOT NULL;
