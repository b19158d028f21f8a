-- min_code: 14
-- Workflows: jobs that run again from the top whenever something they waited for has happened.
-- SQLite cannot change a CHECK, so the table is recreated; it holds unfinished jobs only.
DROP VIEW duly_all_jobs;
DROP TRIGGER duly_workers_idle;
CREATE TABLE duly_jobs_new (
    id text PRIMARY KEY,
    function text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('mutation', 'action', 'workflow')),
    queue text NOT NULL,
    priority integer NOT NULL CHECK (priority BETWEEN 0 AND 9),
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running')),
    hold text CHECK (hold IN
        ('function', 'paused', 'key', 'signature', 'batch', 'alone', 'error', 'history')),
    token integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    system_retries integer NOT NULL DEFAULT 0,
    created_at integer NOT NULL,
    scheduled_at integer NOT NULL,
    run_at integer NOT NULL,
    started_at integer,
    deadline_at integer,
    expires_at integer,
    timeout_ms integer,
    retry text,
    parent_id text,
    owner text,
    tags text,
    worker_id text,
    error_kind text,
    error_message text,
    error_traceback text,
    trigger text,
    actor text,
    retry_of text,
    hook_id text,
    batch_id text,
    unique_key text,
    pending_key text,
    limit_key text,
    limits text,
    lock_retries integer NOT NULL DEFAULT 0,
    -- When the run was first given back, having started: its time limit counts from its start.
    begun_at integer,
    -- Grows with each event, answer or awaited end, so that none is missed by a run that is about
    -- to wait.
    mail integer NOT NULL DEFAULT 0,
    -- What a pending run waits for, or which builds could not continue a held one.
    waits text,
    -- Whether a run waits for the end of this job.
    watched integer NOT NULL DEFAULT 0,
    -- Long columns come last, and their sizes come before them: to read a column, SQLite must also
    -- read all columns in front of it.
    args_bytes integer GENERATED ALWAYS AS (length(CAST(args AS BLOB))) STORED,
    args text NOT NULL,
    CHECK ((state = 'running') = (token % 2 = 1)),
    CHECK ((state = 'running') = (worker_id IS NOT NULL))
);
INSERT INTO duly_jobs_new (
    id, function, kind, queue, priority, state, hold, token, attempt, crashes, system_retries,
    created_at, scheduled_at, run_at, started_at, deadline_at, expires_at, timeout_ms, retry,
    parent_id, owner, tags, worker_id, error_kind, error_message, error_traceback, trigger,
    actor, retry_of, hook_id, batch_id, unique_key, pending_key, limit_key, limits, args,
    lock_retries)
SELECT
    id, function, kind, queue, priority, state, hold, token, attempt, crashes, system_retries,
    created_at, scheduled_at, run_at, started_at, deadline_at, expires_at, timeout_ms, retry,
    parent_id, owner, tags, worker_id, error_kind, error_message, error_traceback, trigger,
    actor, retry_of, hook_id, batch_id, unique_key, pending_key, limit_key, limits, args,
    lock_retries
FROM duly_jobs;
DROP TABLE duly_jobs;
ALTER TABLE duly_jobs_new RENAME TO duly_jobs;

CREATE INDEX duly_jobs_claim ON duly_jobs (queue, priority, run_at, id)
    WHERE state = 'pending' AND hold IS NULL;
CREATE INDEX duly_jobs_worker ON duly_jobs (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX duly_jobs_parent ON duly_jobs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX duly_jobs_hold ON duly_jobs (hold, function, id) WHERE hold IS NOT NULL;
CREATE INDEX duly_jobs_expiry ON duly_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state = 'pending';
CREATE INDEX duly_jobs_deadline ON duly_jobs (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE UNIQUE INDEX duly_jobs_unique ON duly_jobs (unique_key) WHERE unique_key IS NOT NULL;
CREATE UNIQUE INDEX duly_jobs_pending ON duly_jobs (pending_key) WHERE pending_key IS NOT NULL;
CREATE INDEX duly_jobs_schedule ON duly_jobs (actor, state, id) WHERE trigger = 'schedule';
CREATE INDEX duly_jobs_function ON duly_jobs (function, id) WHERE token % 2 = 0;
CREATE INDEX duly_jobs_line ON duly_jobs (batch_id, id) WHERE trigger = 'webhook';
CREATE INDEX duly_jobs_limit ON duly_jobs
    (limit_key, queue, function, limits, priority DESC, scheduled_at, id)
    WHERE limit_key IS NOT NULL AND hold = 'key';
CREATE INDEX duly_jobs_limited ON duly_jobs (limit_key, queue, function, run_at)
    WHERE limit_key IS NOT NULL AND state = 'pending' AND hold IS NULL;
CREATE INDEX duly_jobs_hook_id ON duly_jobs (hook_id) WHERE hook_id IS NOT NULL;
CREATE INDEX duly_jobs_batch ON duly_jobs (batch_id, id) WHERE batch_id IS NOT NULL;

CREATE TRIGGER duly_jobs_worker_exists BEFORE UPDATE OF worker_id ON duly_jobs
WHEN NEW.worker_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM duly_workers WHERE id = NEW.worker_id)
BEGIN SELECT RAISE(ABORT, 'duly: a running job needs the row of its worker'); END;

CREATE TRIGGER duly_workers_idle BEFORE DELETE ON duly_workers
WHEN EXISTS (SELECT 1 FROM duly_jobs WHERE worker_id = OLD.id)
BEGIN SELECT RAISE(ABORT, 'duly: a worker with running jobs must be rescued, not deleted'); END;

CREATE VIEW duly_all_jobs AS
SELECT id, function, kind, queue, priority, state, hold, token, attempt, crashes, system_retries,
    created_at, scheduled_at, run_at, started_at, NULL AS completed_at, expires_at, timeout_ms,
    retry, args, parent_id, owner, tags, worker_id, NULL AS result,
    error_kind, error_message, error_traceback, NULL AS canceled_by
FROM duly_jobs
UNION ALL
SELECT id, function, kind, queue, priority, state, NULL, token, attempt, crashes, system_retries,
    created_at, scheduled_at, run_at, started_at, completed_at, expires_at, timeout_ms,
    retry, args, parent_id, owner, tags, worker_id, result,
    error_kind, error_message, error_traceback, canceled_by
FROM duly_history
UNION ALL
SELECT id, function, kind, queue, priority, state, NULL, token, attempt, crashes, system_retries,
    created_at, scheduled_at, run_at, started_at, completed_at, expires_at, timeout_ms,
    retry, args, parent_id, owner, tags, worker_id, result,
    error_kind, error_message, error_traceback, canceled_by
FROM duly_kept;

CREATE TRIGGER duly_jobs_hook AFTER DELETE ON duly_jobs WHEN OLD.hook_id IS NOT NULL
BEGIN UPDATE duly_jobs SET hold = NULL WHERE id = OLD.hook_id AND hold = 'batch'; END;

CREATE TRIGGER duly_jobs_batch_hook AFTER DELETE ON duly_jobs WHEN OLD.batch_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM duly_jobs WHERE batch_id = OLD.batch_id)
BEGIN UPDATE duly_jobs SET hold = NULL WHERE id = OLD.batch_id AND hold = 'batch'; END;

CREATE TRIGGER duly_jobs_free_next AFTER DELETE ON duly_jobs
    WHEN OLD.trigger = 'webhook' AND OLD.batch_id IS NOT NULL AND OLD.hold IS NOT 'batch'
BEGIN
    UPDATE duly_jobs SET hold = NULL WHERE id = (
        SELECT id FROM duly_jobs
        WHERE trigger = 'webhook' AND batch_id = OLD.batch_id AND hold = 'batch'
        ORDER BY id LIMIT 1);
END;

-- What a run has done, by place: the scope (a branch) and the number of the operation in it. Two
-- workers can never both record at one place, even if one of them runs other code.
CREATE TABLE duly_steps (
    job_id text NOT NULL,
    scope text NOT NULL,
    pos integer NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    token integer NOT NULL,
    attempt integer NOT NULL,
    started_at integer NOT NULL,
    ended_at integer,
    due_at integer,
    args text,
    result_bytes integer GENERATED ALWAYS AS (length(CAST(result AS BLOB))) STORED,
    error text,
    result text,
    PRIMARY KEY (job_id, scope, pos)
);

CREATE TABLE duly_events (
    job_id text NOT NULL,
    seq integer NOT NULL,
    name text NOT NULL,
    once text,
    sent_at integer NOT NULL,
    sent_by text,
    -- The place of the wait that received it.
    taken_by text,
    payload text,
    PRIMARY KEY (job_id, seq)
);
CREATE UNIQUE INDEX duly_events_once ON duly_events (job_id, once) WHERE once IS NOT NULL;

-- Which runs wait for the end of which jobs.
CREATE TABLE duly_watches (
    job_id text NOT NULL,
    watcher_id text NOT NULL,
    PRIMARY KEY (job_id, watcher_id)
) WITHOUT ROWID;

-- A row is deleted from jobs only when its job has ended. A trigger has no clock: the job that ended
-- says roughly when, and it is the past.
CREATE TRIGGER duly_jobs_watched AFTER DELETE ON duly_jobs WHEN OLD.watched
BEGIN
    UPDATE duly_jobs SET mail = mail + 1,
        run_at = CASE WHEN state = 'pending'
            THEN min(run_at, coalesce(OLD.started_at, OLD.created_at)) ELSE run_at END
    WHERE id IN (SELECT watcher_id FROM duly_watches WHERE job_id = OLD.id);
    DELETE FROM duly_watches WHERE job_id = OLD.id;
END;
