-- min_code: 14
-- Workflows: jobs that run again from the top whenever something they waited for has happened.
ALTER TABLE __schema__.jobs
    DROP CONSTRAINT jobs_kind_check,
    ADD CONSTRAINT jobs_kind_check CHECK (kind IN ('mutation', 'action', 'workflow')),
    DROP CONSTRAINT jobs_hold_check,
    ADD CONSTRAINT jobs_hold_check CHECK (hold IN
        ('function', 'paused', 'key', 'signature', 'batch', 'alone', 'error', 'history')),
    -- When the run was first given back, having started: its time limit counts from its start.
    ADD COLUMN begun_at bigint,
    -- Grows with each event, answer or awaited end, so that none is missed by a run that is about
    -- to wait.
    ADD COLUMN mail integer NOT NULL DEFAULT 0,
    -- What a pending run waits for, or which builds could not continue a held one.
    ADD COLUMN waits text,
    -- Whether a run waits for the end of this job.
    ADD COLUMN watched boolean NOT NULL DEFAULT false;

-- What a run has done, by place: the scope (a branch) and the number of the operation in it. Two
-- workers can never both record at one place, even if one of them runs other code.
CREATE TABLE __schema__.steps (
    job_id uuid NOT NULL,
    scope text COLLATE "C" NOT NULL,
    pos integer NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    token integer NOT NULL,
    attempt integer NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint,
    due_at bigint,
    args text,
    result text,
    error text,
    PRIMARY KEY (job_id, scope, pos)
);

CREATE TABLE __schema__.events (
    job_id uuid NOT NULL,
    seq integer NOT NULL,
    name text NOT NULL,
    payload text,
    once text COLLATE "C",
    sent_at bigint NOT NULL,
    sent_by text,
    -- The place of the wait that received it.
    taken_by text,
    PRIMARY KEY (job_id, seq)
);
CREATE UNIQUE INDEX events_once ON __schema__.events (job_id, once) WHERE once IS NOT NULL;

-- Which runs wait for the end of which jobs.
CREATE TABLE __schema__.watches (
    job_id uuid NOT NULL,
    watcher_id uuid NOT NULL,
    PRIMARY KEY (job_id, watcher_id)
);

-- A row is deleted from jobs only when its job has ended. A trigger has no clock: the job that ended
-- says roughly when, and it is the past.
CREATE FUNCTION __schema__.wake_watchers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE __schema__.jobs SET mail = mail + 1,
        run_at = CASE WHEN state = 'pending'
            THEN least(run_at, coalesce(OLD.started_at, OLD.created_at)) ELSE run_at END
    WHERE id IN (SELECT watcher_id FROM __schema__.watches WHERE job_id = OLD.id);
    DELETE FROM __schema__.watches WHERE job_id = OLD.id;
    PERFORM pg_notify('duly', '');
    RETURN NULL;
END $$;

CREATE TRIGGER jobs_watched AFTER DELETE ON __schema__.jobs
    FOR EACH ROW WHEN (OLD.watched) EXECUTE FUNCTION __schema__.wake_watchers();
