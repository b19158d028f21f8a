-- min_code: 1
-- Schedules, which say when a function is called, and the ledger, which records the outcome of each
-- tick.
CREATE TABLE duly_schedules (
    id text PRIMARY KEY,
    -- The app whose code declares the schedule; empty if it was not declared in code.
    app text NOT NULL,
    owner text NOT NULL,
    key text NOT NULL,
    function text NOT NULL,
    args text NOT NULL,
    options text NOT NULL,
    trigger text NOT NULL,
    zoned integer NOT NULL,
    calendar text,
    condition text,
    rotation text,
    rotation_index integer NOT NULL DEFAULT 0,
    policies text NOT NULL,
    enabled integer NOT NULL,
    note text,
    changed_by text,
    start_at integer,
    end_at integer,
    remaining integer CHECK (remaining >= 0),
    -- The nominal time of the next tick, and the time at which it is processed: jitter, a shift to
    -- another day or an operator may move the latter. Both are NULL if there is no next tick.
    next_tick_at integer,
    due_at integer,
    override text,
    -- The time since which the schedule has been enabled with its current timing.
    awake_at integer,
    -- A backfill may have taken slots up to this time; these must not be dispatched again.
    filled_until integer,
    last_tick_at integer,
    last_dispatch_at integer,
    last_job_id text,
    error text,
    -- When the schedule was parked because it could not be processed, and the tick at which it
    -- stopped.
    parked_at integer,
    parked_tick integer,
    orphaned_at integer,
    -- The declaration in code, as last applied; an operator may have changed the other columns
    -- since.
    declared text,
    -- The expectation, the alert to send if it is missed, and the time of the next check.
    expect text,
    alert text,
    expect_at integer,
    -- The tick whose success is expected, or the time since which there are jobs that may still
    -- succeed; the last success that was seen; and how the expectation was missed, if it was.
    expect_tick integer,
    last_success_at integer,
    late text,
    version integer NOT NULL DEFAULT 1,
    created_at integer NOT NULL,
    updated_at integer NOT NULL,
    CHECK ((next_tick_at IS NULL) = (due_at IS NULL)),
    CHECK (enabled OR due_at IS NULL)
);

CREATE UNIQUE INDEX duly_schedules_key ON duly_schedules (app, owner, key);
CREATE INDEX duly_schedules_due ON duly_schedules (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX duly_schedules_function ON duly_schedules (function, id);
CREATE INDEX duly_schedules_owner ON duly_schedules (owner, id);
CREATE INDEX duly_schedules_calendar ON duly_schedules (calendar) WHERE calendar IS NOT NULL;
CREATE INDEX duly_schedules_expect ON duly_schedules (expect_at) WHERE expect_at IS NOT NULL;
CREATE INDEX duly_schedules_parked ON duly_schedules (id) WHERE parked_at IS NOT NULL;

-- Each tick is in exactly one row: dispatched, skipped or missed. A row for missed ticks can cover
-- several of them.
CREATE TABLE duly_ticks (
    schedule_id text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('slot', 'manual', 'missed')),
    tick_at integer NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('dispatched', 'skipped', 'missed')),
    reason text CHECK (reason IN ('calendar', 'condition_failed', 'budget_exceeded',
        'overlap_in_flight', 'cycle_detected', 'schedule_slot_exists', 'target_paused',
        'target_deprecated', 'kill_switch', 'operator')),
    detail text,
    job_id text,
    rotation_index integer,
    due_at integer NOT NULL,
    decided_at integer NOT NULL,
    first_at integer,
    count integer,
    dst_adjusted integer NOT NULL DEFAULT 0,
    PRIMARY KEY (schedule_id, kind, tick_at),
    CHECK ((outcome = 'skipped') = (reason IS NOT NULL)),
    CHECK ((outcome = 'missed') = (kind = 'missed')),
    CHECK (outcome <> 'dispatched' OR job_id IS NOT NULL)
) WITHOUT ROWID;

-- Digests of the sets of declared schedules that were applied for an app, newest last. If a process
-- of an earlier release restarts alongside a newer one, it changes nothing.
CREATE TABLE duly_declarations (
    app text PRIMARY KEY,
    seen text NOT NULL
);

CREATE TABLE duly_calendars (
    id text PRIMARY KEY,
    owner text NOT NULL,
    name text NOT NULL,
    definition text NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at integer NOT NULL,
    updated_at integer NOT NULL
);
CREATE UNIQUE INDEX duly_calendars_name ON duly_calendars (owner, name);

-- The costs that the jobs of a schedule have reported.
CREATE TABLE duly_costs (
    schedule_id text NOT NULL,
    tick_at integer NOT NULL,
    job_id text NOT NULL,
    -- The token of the attempt that reported the cost: each attempt has one row with its cost so
    -- far.
    token integer NOT NULL,
    amount real NOT NULL,
    PRIMARY KEY (schedule_id, tick_at, job_id, token)
) WITHOUT ROWID;

-- Counts that outlive the ledger and the jobs: one row per schedule and day (UTC).
CREATE TABLE duly_days (
    schedule_id text NOT NULL,
    day integer NOT NULL,
    dispatched integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    missed integer NOT NULL DEFAULT 0,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    canceled integer NOT NULL DEFAULT 0,
    PRIMARY KEY (schedule_id, day)
) WITHOUT ROWID;

-- The audit log: who did what to what, and when.
CREATE TABLE duly_audit (
    id text PRIMARY KEY,
    at integer NOT NULL,
    actor text,
    action text NOT NULL,
    target text NOT NULL,
    detail text
);
CREATE INDEX duly_audit_target ON duly_audit (target, id);

-- Retention keeps the newest finished job of each function; conditions look it up.
CREATE INDEX duly_kept_ended ON duly_kept (function, state, id);
CREATE INDEX duly_jobs_schedule ON duly_jobs (actor, state, id) WHERE trigger = 'schedule';
CREATE INDEX duly_history_schedule ON duly_history (actor, id) WHERE trigger = 'schedule';
-- Pending jobs of a function; running jobs are found by their worker. The condition is written in
-- this form so that the planner does not use the index for other statements.
CREATE INDEX duly_jobs_function ON duly_jobs (function, id) WHERE token % 2 = 0;
