-- min_code: 1
-- Keep lists fast even when they find few rows. Most jobs are in the default queue and succeed:
-- these two indexes cost them nothing.
CREATE INDEX history_queue ON __schema__.history (queue, id) WHERE queue <> 'default';
-- Jobs that did not succeed. The condition is written in this form so that the planner does not use
-- the index for other statements.
CREATE INDEX history_state ON __schema__.history (state, id) WHERE length(state) < 9;

-- Webhook requests that failed, that were filtered, or whose job was older than the request.
CREATE INDEX history_unprocessed ON __schema__.history (id)
    WHERE trigger = 'webhook' AND state IN ('failed', 'canceled');
CREATE INDEX kept_unprocessed ON __schema__.kept (id)
    WHERE trigger = 'webhook' AND state IN ('failed', 'canceled');
CREATE INDEX inbox_filtered ON __schema__.inbox (id) WHERE job_id IS NULL;
CREATE INDEX inbox_older_job ON __schema__.inbox (id) WHERE job_id < id;

-- Actions are searched by prefix, for which the index needs this collation.
CREATE INDEX audit_action ON __schema__.audit (action COLLATE "C", id);
CREATE INDEX audit_actor ON __schema__.audit (actor, id) WHERE actor IS NOT NULL;

CREATE INDEX schedules_disabled ON __schema__.schedules (owner, id) WHERE NOT enabled;

-- The time zone in which the dashboard shows times to the user of the token, unless another is
-- chosen.
ALTER TABLE __schema__.tokens ADD COLUMN tz text;
