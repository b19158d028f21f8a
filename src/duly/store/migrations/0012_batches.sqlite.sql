-- min_code: 1
-- So that a retry of a finished job has the same hook.
ALTER TABLE duly_history ADD COLUMN hook_id text;
ALTER TABLE duly_kept ADD COLUMN hook_id text;
-- So that the members of a batch can be read in the order of the calls, one page at a time.
DROP INDEX duly_jobs_batch;
CREATE INDEX duly_jobs_batch ON duly_jobs (batch_id, id) WHERE batch_id IS NOT NULL;
DROP INDEX duly_history_batch;
CREATE INDEX duly_history_batch ON duly_history (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX duly_kept_batch ON duly_kept (batch_id, id) WHERE batch_id IS NOT NULL;
