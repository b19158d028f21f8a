-- min_code: 1
CREATE TABLE duly_workers (
    id text PRIMARY KEY,
    app text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    queues text,
    functions text NOT NULL,
    slots integer NOT NULL,
    alone integer NOT NULL DEFAULT 0,
    beat integer NOT NULL DEFAULT 0,
    started_at integer NOT NULL
);

CREATE TABLE duly_queues (
    name text PRIMARY KEY,
    paused_at integer,
    paused_by text,
    note text
);

CREATE TABLE duly_jobs (
    id text PRIMARY KEY,
    function text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('mutation', 'action')),
    queue text NOT NULL,
    priority integer NOT NULL CHECK (priority BETWEEN 0 AND 9),
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running')),
    hold text CHECK (hold IN ('function', 'paused', 'key', 'signature', 'batch', 'alone')),
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
    -- Long columns come last, and their sizes come before them: to read a column, SQLite must also
    -- read all columns in front of it.
    args_bytes integer GENERATED ALWAYS AS (length(CAST(args AS BLOB))) STORED,
    args text NOT NULL,
    CHECK ((state = 'running') = (token % 2 = 1)),
    CHECK ((state = 'running') = (worker_id IS NOT NULL))
);

CREATE INDEX duly_jobs_claim ON duly_jobs (queue, priority, run_at, id)
    WHERE state = 'pending' AND hold IS NULL;
CREATE INDEX duly_jobs_worker ON duly_jobs (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX duly_jobs_parent ON duly_jobs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX duly_jobs_hold ON duly_jobs (hold, function, id) WHERE hold IS NOT NULL;
CREATE INDEX duly_jobs_expiry ON duly_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state = 'pending';
CREATE INDEX duly_jobs_deadline ON duly_jobs (deadline_at) WHERE deadline_at IS NOT NULL;

-- A foreign key would depend on the user's setting of PRAGMA foreign_keys; these two triggers do
-- not.
CREATE TRIGGER duly_jobs_worker_exists BEFORE UPDATE OF worker_id ON duly_jobs
WHEN NEW.worker_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM duly_workers WHERE id = NEW.worker_id)
BEGIN SELECT RAISE(ABORT, 'duly: a running job needs the row of its worker'); END;

CREATE TRIGGER duly_workers_idle BEFORE DELETE ON duly_workers
WHEN EXISTS (SELECT 1 FROM duly_jobs WHERE worker_id = OLD.id)
BEGIN SELECT RAISE(ABORT, 'duly: a worker with running jobs must be rescued, not deleted'); END;

CREATE TABLE duly_history (
    seq integer PRIMARY KEY,
    id text NOT NULL,
    function text NOT NULL,
    kind text NOT NULL,
    queue text NOT NULL,
    priority integer NOT NULL,
    state text NOT NULL CHECK (state IN ('succeeded', 'failed', 'canceled')),
    token integer NOT NULL,
    attempt integer NOT NULL,
    crashes integer NOT NULL,
    system_retries integer NOT NULL,
    created_at integer NOT NULL,
    scheduled_at integer NOT NULL,
    run_at integer NOT NULL,
    started_at integer,
    completed_at integer NOT NULL,
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
    canceled_by text,
    exhausted integer NOT NULL DEFAULT 0,
    trigger text,
    actor text,
    retry_of text,
    batch_id text,
    -- As above. In addition, short arguments are copied in front of a long result, so that reading
    -- them does not mean reading the result.
    args_bytes integer GENERATED ALWAYS AS (length(CAST(args AS BLOB))) STORED,
    result_bytes integer GENERATED ALWAYS AS (length(CAST(result AS BLOB))) STORED,
    short_args text GENERATED ALWAYS AS
        (CASE WHEN args_bytes <= 8192 AND result_bytes > 8192 THEN args END) STORED,
    result text,
    args text NOT NULL,
    -- Only a running job can succeed or fail.
    CHECK (state = 'canceled' OR token % 2 = 1)
);

CREATE UNIQUE INDEX duly_history_id ON duly_history (id);
CREATE INDEX duly_history_function ON duly_history (function, state, id);
CREATE INDEX duly_history_owner ON duly_history (owner, id) WHERE owner IS NOT NULL;
CREATE INDEX duly_history_parent ON duly_history (parent_id) WHERE parent_id IS NOT NULL;

CREATE TRIGGER duly_history_final BEFORE UPDATE ON duly_history
BEGIN SELECT RAISE(ABORT, 'duly: a finished job never changes'); END;

-- Jobs that outlive retention: the newest finished job of each function, and exhausted jobs.
CREATE TABLE duly_kept (
    id text PRIMARY KEY,
    function text NOT NULL,
    kind text NOT NULL,
    queue text NOT NULL,
    priority integer NOT NULL,
    state text NOT NULL,
    token integer NOT NULL,
    attempt integer NOT NULL,
    crashes integer NOT NULL,
    system_retries integer NOT NULL,
    created_at integer NOT NULL,
    scheduled_at integer NOT NULL,
    run_at integer NOT NULL,
    started_at integer,
    completed_at integer NOT NULL,
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
    canceled_by text,
    exhausted integer NOT NULL,
    trigger text,
    actor text,
    retry_of text,
    batch_id text,
    args_bytes integer GENERATED ALWAYS AS (length(CAST(args AS BLOB))) STORED,
    result_bytes integer GENERATED ALWAYS AS (length(CAST(result AS BLOB))) STORED,
    short_args text GENERATED ALWAYS AS
        (CASE WHEN args_bytes <= 8192 AND result_bytes > 8192 THEN args END) STORED,
    result text,
    args text NOT NULL
);

CREATE INDEX duly_kept_function ON duly_kept (function, completed_at);

CREATE TRIGGER duly_kept_final BEFORE UPDATE ON duly_kept
BEGIN SELECT RAISE(ABORT, 'duly: a finished job never changes'); END;

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
