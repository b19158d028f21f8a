-- min_code: 1
-- So that a retry of a finished job has the same hook.
ALTER TABLE __schema__.history ADD COLUMN hook_id uuid;
ALTER TABLE __schema__.kept ADD COLUMN hook_id uuid;
-- So that the members of a batch can be read in the order of the calls, one page at a time.
DROP INDEX __schema__.jobs_batch;
CREATE INDEX jobs_batch ON __schema__.jobs (batch_id, id) WHERE batch_id IS NOT NULL;
DROP INDEX __schema__.history_batch;
CREATE INDEX history_batch ON __schema__.history (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX kept_batch ON __schema__.kept (batch_id, id) WHERE batch_id IS NOT NULL;
