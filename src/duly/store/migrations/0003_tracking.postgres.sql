-- min_code: 1
-- What started a job, which job it retries, which jobs wait for it to end, and which keys it
-- competes for.
ALTER TABLE __schema__.jobs
    ADD COLUMN trigger text,
    ADD COLUMN actor text,
    ADD COLUMN retry_of uuid,
    ADD COLUMN hook_id uuid,
    ADD COLUMN batch_id uuid,
    ADD COLUMN unique_key text COLLATE "C",
    ADD COLUMN pending_key text COLLATE "C",
    ADD COLUMN limit_key text COLLATE "C",
    ADD COLUMN limits text;

CREATE INDEX jobs_batch ON __schema__.jobs (batch_id) WHERE batch_id IS NOT NULL;
CREATE UNIQUE INDEX jobs_unique ON __schema__.jobs (unique_key) WHERE unique_key IS NOT NULL;
CREATE UNIQUE INDEX jobs_pending ON __schema__.jobs (pending_key) WHERE pending_key IS NOT NULL;
-- Jobs that wait for a limit key, in the order in which they get a slot; and jobs that may try to
-- get one.
CREATE INDEX jobs_limit ON __schema__.jobs (limit_key, priority DESC, run_at, id)
    WHERE limit_key IS NOT NULL AND hold = 'key';
CREATE INDEX jobs_limited ON __schema__.jobs (limit_key, run_at)
    WHERE limit_key IS NOT NULL AND state = 'pending' AND hold IS NULL;

ALTER TABLE __schema__.history
    ADD COLUMN trigger text,
    ADD COLUMN actor text,
    ADD COLUMN retry_of uuid,
    ADD COLUMN batch_id uuid;
CREATE INDEX history_batch ON __schema__.history (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX history_exhausted ON __schema__.history (id) WHERE exhausted;

ALTER TABLE __schema__.kept
    ADD COLUMN trigger text,
    ADD COLUMN actor text,
    ADD COLUMN retry_of uuid,
    ADD COLUMN batch_id uuid;

-- A row is deleted from this table only when its job has ended, for whatever reason. The deletion
-- frees the job that waits for this one, or for the last job of a batch. The id of a batch's hook
-- is the id of the batch.
CREATE FUNCTION __schema__.free_hook() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.hook_id IS NOT NULL THEN
        UPDATE __schema__.jobs SET hold = NULL WHERE id = OLD.hook_id AND hold = 'batch';
    END IF;
    IF OLD.batch_id IS NOT NULL THEN
        -- If the last two members end at the same moment, the second sees that the first is gone.
        PERFORM 1 FROM __schema__.jobs WHERE id = OLD.batch_id FOR UPDATE;
        IF NOT EXISTS (SELECT 1 FROM __schema__.jobs WHERE batch_id = OLD.batch_id) THEN
            UPDATE __schema__.jobs SET hold = NULL WHERE id = OLD.batch_id AND hold = 'batch';
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER jobs_hook AFTER DELETE ON __schema__.jobs
    FOR EACH ROW WHEN (OLD.hook_id IS NOT NULL OR OLD.batch_id IS NOT NULL)
    EXECUTE FUNCTION __schema__.free_hook();

-- Keys that outlive their job: for one call per period, or one call per idempotency key.
CREATE TABLE __schema__.keys (
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX keys_expiry ON __schema__.keys (expires_at);

-- The jobs that now run under a limit key, and the times at which its last jobs started.
CREATE TABLE __schema__.slots (
    key text COLLATE "C" NOT NULL,
    slot integer NOT NULL,
    job_id uuid NOT NULL,
    -- Identifies the attempt: an earlier one may still be running when the job is started again.
    token integer NOT NULL,
    worker_id uuid NOT NULL,
    PRIMARY KEY (key, slot)
);
CREATE INDEX slots_job ON __schema__.slots (job_id);
CREATE INDEX slots_worker ON __schema__.slots (worker_id);

CREATE TABLE __schema__.starts (
    key text COLLATE "C" NOT NULL,
    started_at bigint NOT NULL,
    job_id uuid NOT NULL,
    token integer NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (key, started_at, job_id, token)
);
CREATE INDEX starts_expiry ON __schema__.starts (expires_at);

-- How many jobs of a queue may run at once, across all workers.
ALTER TABLE __schema__.queues ADD COLUMN at_once integer;

CREATE TABLE __schema__.progress (
    job_id uuid PRIMARY KEY,
    value double precision,
    note text,
    revision bigint NOT NULL,
    updated_at bigint NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE __schema__.logs (
    job_id uuid NOT NULL,
    seq bigint NOT NULL,
    logged_at bigint NOT NULL,
    level text NOT NULL,
    line text NOT NULL,
    PRIMARY KEY (job_id, seq)
);
