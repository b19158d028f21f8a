-- min_code: 1
-- Schedules, which say when a function is called, and the ledger, which records the outcome of each
-- tick.
CREATE TABLE __schema__.schedules (
    id uuid PRIMARY KEY,
    -- The app whose code declares the schedule; empty if it was not declared in code.
    app text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    function text COLLATE "C" NOT NULL,
    args text NOT NULL,
    options text NOT NULL,
    trigger text NOT NULL,
    zoned boolean NOT NULL,
    calendar text COLLATE "C",
    condition text,
    rotation text,
    rotation_index integer NOT NULL DEFAULT 0,
    policies text NOT NULL,
    enabled boolean NOT NULL,
    note text,
    changed_by text,
    start_at bigint,
    end_at bigint,
    remaining integer CHECK (remaining >= 0),
    -- The nominal time of the next tick, and the time at which it is processed: jitter, a shift to
    -- another day or an operator may move the latter. Both are NULL if there is no next tick.
    next_tick_at bigint,
    due_at bigint,
    override text,
    -- The time since which the schedule has been enabled with its current timing.
    awake_at bigint,
    -- A backfill may have taken slots up to this time; these must not be dispatched again.
    filled_until bigint,
    last_tick_at bigint,
    last_dispatch_at bigint,
    last_job_id uuid,
    error text,
    -- When the schedule was parked because it could not be processed, and the tick at which it
    -- stopped.
    parked_at bigint,
    parked_tick bigint,
    orphaned_at bigint,
    -- The declaration in code, as last applied; an operator may have changed the other columns
    -- since.
    declared text,
    -- The expectation, the alert to send if it is missed, and the time of the next check.
    expect text,
    alert text,
    expect_at bigint,
    -- The tick whose success is expected, or the time since which there are jobs that may still
    -- succeed; the last success that was seen; and how the expectation was missed, if it was.
    expect_tick bigint,
    last_success_at bigint,
    late text,
    version integer NOT NULL DEFAULT 1,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    CHECK ((next_tick_at IS NULL) = (due_at IS NULL)),
    CHECK (enabled OR due_at IS NULL)
);

CREATE UNIQUE INDEX schedules_key ON __schema__.schedules (app, owner, key);
CREATE INDEX schedules_due ON __schema__.schedules (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX schedules_function ON __schema__.schedules (function, id);
CREATE INDEX schedules_owner ON __schema__.schedules (owner, id);
CREATE INDEX schedules_calendar ON __schema__.schedules (calendar) WHERE calendar IS NOT NULL;
CREATE INDEX schedules_expect ON __schema__.schedules (expect_at) WHERE expect_at IS NOT NULL;
CREATE INDEX schedules_parked ON __schema__.schedules (id) WHERE parked_at IS NOT NULL;

-- Each tick is in exactly one row: dispatched, skipped or missed. A row for missed ticks can cover
-- several of them.
CREATE TABLE __schema__.ticks (
    schedule_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('slot', 'manual', 'missed')),
    tick_at bigint NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('dispatched', 'skipped', 'missed')),
    reason text CHECK (reason IN ('calendar', 'condition_failed', 'budget_exceeded',
        'overlap_in_flight', 'cycle_detected', 'schedule_slot_exists', 'target_paused',
        'target_deprecated', 'kill_switch', 'operator')),
    detail text,
    job_id uuid,
    rotation_index integer,
    due_at bigint NOT NULL,
    decided_at bigint NOT NULL,
    first_at bigint,
    count bigint,
    dst_adjusted boolean NOT NULL DEFAULT false,
    PRIMARY KEY (schedule_id, kind, tick_at),
    CHECK ((outcome = 'skipped') = (reason IS NOT NULL)),
    CHECK ((outcome = 'missed') = (kind = 'missed')),
    CHECK (outcome <> 'dispatched' OR job_id IS NOT NULL)
);

-- Digests of the sets of declared schedules that were applied for an app, newest last. If a process
-- of an earlier release restarts alongside a newer one, it changes nothing.
CREATE TABLE __schema__.declarations (
    app text COLLATE "C" PRIMARY KEY,
    seen text NOT NULL
);

CREATE TABLE __schema__.calendars (
    id uuid PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    definition text NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
);
CREATE UNIQUE INDEX calendars_name ON __schema__.calendars (owner, name);

-- The costs that the jobs of a schedule have reported.
CREATE TABLE __schema__.costs (
    schedule_id uuid NOT NULL,
    tick_at bigint NOT NULL,
    job_id uuid NOT NULL,
    -- The token of the attempt that reported the cost: each attempt has one row with its cost so
    -- far.
    token integer NOT NULL,
    amount double precision NOT NULL,
    PRIMARY KEY (schedule_id, tick_at, job_id, token)
);

-- Counts that outlive the ledger and the jobs: one row per schedule and day (UTC).
CREATE TABLE __schema__.days (
    schedule_id uuid NOT NULL,
    day integer NOT NULL,
    dispatched integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    missed integer NOT NULL DEFAULT 0,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    canceled integer NOT NULL DEFAULT 0,
    PRIMARY KEY (schedule_id, day)
);

-- The audit log: who did what to what, and when.
CREATE TABLE __schema__.audit (
    id uuid PRIMARY KEY,
    at bigint NOT NULL,
    actor text,
    action text NOT NULL,
    target text COLLATE "C" NOT NULL,
    detail text
);
CREATE INDEX audit_target ON __schema__.audit (target, id);

-- Retention keeps the newest finished job of each function; conditions look it up.
CREATE INDEX kept_ended ON __schema__.kept (function, state, id);
CREATE INDEX jobs_schedule ON __schema__.jobs (actor, state, id) WHERE trigger = 'schedule';
CREATE INDEX history_schedule ON __schema__.history (actor, id) WHERE trigger = 'schedule';
-- Pending jobs of a function; running jobs are found by their worker. The condition is written in
-- this form so that the planner does not use the index for other statements.
CREATE INDEX jobs_function ON __schema__.jobs (function, id) WHERE token % 2 = 0;
