-- min_code: 1
CREATE INDEX duly_jobs_batch ON duly_jobs (batch_id) WHERE batch_id IS NOT NULL;
CREATE UNIQUE INDEX duly_jobs_unique ON duly_jobs (unique_key) WHERE unique_key IS NOT NULL;
CREATE UNIQUE INDEX duly_jobs_pending ON duly_jobs (pending_key) WHERE pending_key IS NOT NULL;
-- Jobs that wait for a limit key, in the order in which they get a slot; and jobs that may try to
-- get one.
CREATE INDEX duly_jobs_limit ON duly_jobs (limit_key, priority DESC, run_at, id)
    WHERE limit_key IS NOT NULL AND hold = 'key';
CREATE INDEX duly_jobs_limited ON duly_jobs (limit_key, run_at)
    WHERE limit_key IS NOT NULL AND state = 'pending' AND hold IS NULL;

CREATE INDEX duly_history_batch ON duly_history (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX duly_history_exhausted ON duly_history (id) WHERE exhausted;

-- A row is deleted from this table only when its job has ended, for whatever reason. The deletion
-- frees the job that waits for this one, or for the last job of a batch. The id of a batch's hook
-- is the id of the batch.
CREATE TRIGGER duly_jobs_hook AFTER DELETE ON duly_jobs WHEN OLD.hook_id IS NOT NULL
BEGIN UPDATE duly_jobs SET hold = NULL WHERE id = OLD.hook_id AND hold = 'batch'; END;

CREATE TRIGGER duly_jobs_batch_hook AFTER DELETE ON duly_jobs WHEN OLD.batch_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM duly_jobs WHERE batch_id = OLD.batch_id)
BEGIN UPDATE duly_jobs SET hold = NULL WHERE id = OLD.batch_id AND hold = 'batch'; END;

-- Keys that outlive their job: for one call per period, or one call per idempotency key.
CREATE TABLE duly_keys (
    scope text NOT NULL,
    key text NOT NULL,
    job_id text NOT NULL,
    expires_at integer NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX duly_keys_expiry ON duly_keys (expires_at);

-- The jobs that now run under a limit key, and the times at which its last jobs started.
CREATE TABLE duly_slots (
    key text NOT NULL,
    slot integer NOT NULL,
    job_id text NOT NULL,
    -- Identifies the attempt: an earlier one may still be running when the job is started again.
    token integer NOT NULL,
    worker_id text NOT NULL,
    PRIMARY KEY (key, slot)
);
CREATE INDEX duly_slots_job ON duly_slots (job_id);
CREATE INDEX duly_slots_worker ON duly_slots (worker_id);

CREATE TABLE duly_starts (
    key text NOT NULL,
    started_at integer NOT NULL,
    job_id text NOT NULL,
    token integer NOT NULL,
    expires_at integer NOT NULL,
    PRIMARY KEY (key, started_at, job_id, token)
);
CREATE INDEX duly_starts_expiry ON duly_starts (expires_at);

-- How many jobs of a queue may run at once, across all workers.
ALTER TABLE duly_queues ADD COLUMN at_once integer;

CREATE TABLE duly_progress (
    job_id text PRIMARY KEY,
    value real,
    note text,
    revision integer NOT NULL,
    updated_at integer NOT NULL
);

CREATE TABLE duly_logs (
    job_id text NOT NULL,
    seq integer NOT NULL,
    logged_at integer NOT NULL,
    level text NOT NULL,
    line text NOT NULL,
    PRIMARY KEY (job_id, seq)
);
