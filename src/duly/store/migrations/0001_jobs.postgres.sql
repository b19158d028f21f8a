-- min_code: 1
CREATE TABLE __schema__.workers (
    id uuid PRIMARY KEY,
    app text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    queues text,
    functions text NOT NULL,
    slots integer NOT NULL,
    alone boolean NOT NULL DEFAULT false,
    beat bigint NOT NULL DEFAULT 0,
    started_at bigint NOT NULL
);

CREATE TABLE __schema__.queues (
    name text PRIMARY KEY,
    paused_at bigint,
    paused_by text,
    note text
);

CREATE TABLE __schema__.jobs (
    id uuid PRIMARY KEY,
    function text COLLATE "C" NOT NULL,
    kind text NOT NULL CHECK (kind IN ('mutation', 'action')),
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running')),
    hold text COLLATE "C" CHECK (hold IN ('function', 'paused', 'key', 'signature', 'batch', 'alone')),
    token integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    system_retries integer NOT NULL DEFAULT 0,
    created_at bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    run_at bigint NOT NULL,
    started_at bigint,
    deadline_at bigint,
    expires_at bigint,
    timeout_ms bigint,
    retry text,
    args text NOT NULL,
    parent_id uuid,
    owner text,
    tags text,
    worker_id uuid REFERENCES __schema__.workers (id),
    error_kind text,
    error_message text,
    error_traceback text,
    CHECK ((state = 'running') = (token % 2 = 1)),
    CHECK ((state = 'running') = (worker_id IS NOT NULL))
) WITH (
    -- Every job is inserted, updated and deleted, so vacuum often and at full speed.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    -- The table must never look tiny to the planner; see below.
    autovacuum_analyze_threshold = 1000,
    vacuum_truncate = off
);

CREATE INDEX jobs_claim ON __schema__.jobs (queue, priority, run_at, id)
    WHERE state = 'pending' AND hold IS NULL;
CREATE INDEX jobs_worker ON __schema__.jobs (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX jobs_parent ON __schema__.jobs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX jobs_hold ON __schema__.jobs (hold, function, id) WHERE hold IS NOT NULL;
CREATE INDEX jobs_expiry ON __schema__.jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state = 'pending';
CREATE INDEX jobs_deadline ON __schema__.jobs (deadline_at) WHERE deadline_at IS NOT NULL;

-- PostgreSQL scans a table of a few pages sequentially, and a prepared plan continues to do so
-- until the next ANALYZE, however many jobs have been added in the meantime (finishing 1,000 jobs
-- while 200,000 are stored then takes 900 ms instead of 30 ms). So the table is given a hundred
-- pages now, which it keeps when they are empty.
INSERT INTO __schema__.jobs
    (id, function, kind, queue, priority, created_at, scheduled_at, run_at, args)
SELECT gen_random_uuid(), '', 'action', '', 0, 0, 0, 0, repeat(' ', 1000)
FROM generate_series(1, 600);
DELETE FROM __schema__.jobs;

CREATE TABLE __schema__.history (
    bucket smallint NOT NULL,
    id uuid NOT NULL,
    function text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    state text NOT NULL CHECK (state IN ('succeeded', 'failed', 'canceled')),
    token integer NOT NULL,
    attempt integer NOT NULL,
    crashes integer NOT NULL,
    system_retries integer NOT NULL,
    created_at bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    run_at bigint NOT NULL,
    started_at bigint,
    completed_at bigint NOT NULL,
    expires_at bigint,
    timeout_ms bigint,
    retry text,
    args text NOT NULL,
    parent_id uuid,
    owner text,
    tags text,
    worker_id uuid,
    result text,
    error_kind text,
    error_message text,
    error_traceback text,
    canceled_by text,
    exhausted boolean NOT NULL DEFAULT false,
    -- Only a running job can succeed or fail.
    CHECK (state = 'canceled' OR token % 2 = 1)
) PARTITION BY LIST (bucket);

-- A fixed ring of 16 buckets: the bucket of a job is the day on which it finished, modulo 16.
-- Retention empties buckets, so no DDL is needed later.
DO $$
BEGIN
    FOR bucket IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE __schema__.history_%s PARTITION OF __schema__.history FOR VALUES IN (%s)'
            -- Statistics of a bucket that is still almost empty would make prepared plans scan it.
            ' WITH (autovacuum_analyze_threshold = 1000)',
            lpad(bucket::text, 2, '0'), bucket);
    END LOOP;
END $$;

CREATE UNIQUE INDEX history_id ON __schema__.history (id, bucket);
CREATE INDEX history_function ON __schema__.history (function, state, id);
CREATE INDEX history_owner ON __schema__.history (owner, id) WHERE owner IS NOT NULL;
CREATE INDEX history_parent ON __schema__.history (parent_id) WHERE parent_id IS NOT NULL;

CREATE FUNCTION __schema__.refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'duly: a finished job never changes'; END $$;

CREATE TRIGGER history_final BEFORE UPDATE ON __schema__.history
    FOR EACH ROW EXECUTE FUNCTION __schema__.refuse_update();

-- Jobs that outlive retention: the newest finished job of each function, and exhausted jobs.
CREATE TABLE __schema__.kept (
    id uuid PRIMARY KEY,
    function text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    state text NOT NULL,
    token integer NOT NULL,
    attempt integer NOT NULL,
    crashes integer NOT NULL,
    system_retries integer NOT NULL,
    created_at bigint NOT NULL,
    scheduled_at bigint NOT NULL,
    run_at bigint NOT NULL,
    started_at bigint,
    completed_at bigint NOT NULL,
    expires_at bigint,
    timeout_ms bigint,
    retry text,
    args text NOT NULL,
    parent_id uuid,
    owner text,
    tags text,
    worker_id uuid,
    result text,
    error_kind text,
    error_message text,
    error_traceback text,
    canceled_by text,
    exhausted boolean NOT NULL
);

CREATE INDEX kept_function ON __schema__.kept (function, completed_at);

CREATE TRIGGER kept_final BEFORE UPDATE ON __schema__.kept
    FOR EACH ROW EXECUTE FUNCTION __schema__.refuse_update();

CREATE VIEW __schema__.all_jobs AS
SELECT id, function, kind, queue, priority, state, hold, token, attempt, crashes, system_retries,
    created_at, scheduled_at, run_at, started_at, NULL::bigint AS completed_at, expires_at, timeout_ms,
    retry, args, parent_id, owner, tags, worker_id, NULL::text AS result,
    error_kind, error_message, error_traceback, NULL::text AS canceled_by
FROM __schema__.jobs
UNION ALL
SELECT id, function, kind, queue, priority, state, NULL::text, token, attempt, crashes, system_retries,
    created_at, scheduled_at, run_at, started_at, completed_at, expires_at, timeout_ms,
    retry, args, parent_id, owner, tags, worker_id, result,
    error_kind, error_message, error_traceback, canceled_by
FROM __schema__.history
UNION ALL
SELECT id, function, kind, queue, priority, state, NULL::text, token, attempt, crashes, system_retries,
    created_at, scheduled_at, run_at, started_at, completed_at, expires_at, timeout_ms,
    retry, args, parent_id, owner, tags, worker_id, result,
    error_kind, error_message, error_traceback, canceled_by
FROM __schema__.kept;
