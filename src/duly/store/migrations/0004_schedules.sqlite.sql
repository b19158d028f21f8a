-- min_code: 1
-- Rules that say when a function is called, and the ledger of what became of each due instant.
CREATE TABLE duly_schedules (
    id text PRIMARY KEY,
    -- The app whose code declares it; empty for those that are data.
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
    -- The nominal time of the next tick, and when it is looked at: jitter, a shift to another day or
    -- an operator may move that. Both are empty while nothing is to come.
    next_tick_at integer,
    due_at integer,
    override text,
    -- Since when it ticks as it does.
    awake_at integer,
    -- No slot up to here that a backfill has taken may be dispatched again.
    filled_until integer,
    last_tick_at integer,
    last_dispatch_at integer,
    last_job_id text,
    error text,
    -- Since when nobody can decide about it, and the tick that it stood at.
    parked_at integer,
    parked_tick integer,
    orphaned_at integer,
    -- What code says of it, as it was applied last; an operator may have changed the rest since.
    declared text,
    -- What it promises, whom to tell if that is broken, when to look next, and how it stands.
    expect text,
    alert text,
    expect_at integer,
    -- The tick whose success is waited for, or since when jobs are there that may still succeed; the
    -- last success that was seen.
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

-- Every tick is exactly one row: dispatched, skipped or, with others, missed.
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

-- The sets of declared schedules that were applied for an app, by digest, the newest last: a process
-- of an earlier release that starts again beside a newer one changes nothing.
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

-- What jobs of a schedule have cost, as they say themselves.
CREATE TABLE duly_costs (
    schedule_id text NOT NULL,
    tick_at integer NOT NULL,
    job_id text NOT NULL,
    -- Of the claim that says it: each attempt has a row with what it has cost so far.
    token integer NOT NULL,
    amount real NOT NULL,
    PRIMARY KEY (schedule_id, tick_at, job_id, token)
) WITHOUT ROWID;

-- What outlives the ledger and the jobs: one row for a schedule and a day (UTC).
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

-- Who did what to what.
CREATE TABLE duly_audit (
    id text PRIMARY KEY,
    at integer NOT NULL,
    actor text,
    action text NOT NULL,
    target text NOT NULL,
    detail text
);
CREATE INDEX duly_audit_target ON duly_audit (target, id);

-- Retention keeps the newest finished job of each function; a condition looks for it.
CREATE INDEX duly_kept_ended ON duly_kept (function, state, id);
CREATE INDEX duly_jobs_schedule ON duly_jobs (actor, state, id) WHERE trigger = 'schedule';
CREATE INDEX duly_history_schedule ON duly_history (actor, id) WHERE trigger = 'schedule';
-- Waiting jobs of a function; what runs is found by its worker. Said so that no other statement is
-- tempted to use it.
CREATE INDEX duly_jobs_function ON duly_jobs (function, id) WHERE token % 2 = 0;
