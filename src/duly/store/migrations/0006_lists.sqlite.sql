-- min_code: 1
-- Keep lists fast even when they find few rows. Most jobs are in the default queue and succeed:
-- these two indexes cost them nothing.
CREATE INDEX duly_history_queue ON duly_history (queue, id) WHERE queue <> 'default';
-- Jobs that did not succeed. The condition is written in this form so that the planner does not use
-- the index for other statements.
CREATE INDEX duly_history_state ON duly_history (state, id) WHERE length(state) < 9;

-- Webhook requests that failed, that were filtered, or whose job was older than the request.
CREATE INDEX duly_history_unprocessed ON duly_history (id)
    WHERE trigger = 'webhook' AND state IN ('failed', 'canceled');
CREATE INDEX duly_kept_unprocessed ON duly_kept (id)
    WHERE trigger = 'webhook' AND state IN ('failed', 'canceled');
CREATE INDEX duly_inbox_filtered ON duly_inbox (id) WHERE job_id IS NULL;
CREATE INDEX duly_inbox_older_job ON duly_inbox (id) WHERE job_id < id;

CREATE INDEX duly_audit_actor ON duly_audit (actor, id) WHERE actor IS NOT NULL;

CREATE INDEX duly_schedules_disabled ON duly_schedules (owner, id) WHERE NOT enabled;

-- The time zone in which the dashboard shows times to the user of the token, unless another is
-- chosen.
ALTER TABLE duly_tokens ADD COLUMN tz text;
