-- min_code: 1
-- So that lists answer soon also where they find little. Most jobs are in the default queue and
-- succeed: they pay nothing for this.
CREATE INDEX duly_history_queue ON duly_history (queue, id) WHERE queue <> 'default';
-- Those that have not succeeded; said so that no other statement is tempted to use it.
CREATE INDEX duly_history_state ON duly_history (state, id) WHERE length(state) < 9;

-- Webhooks that have failed, those that were filtered, and those whose job was there before them.
CREATE INDEX duly_history_unprocessed ON duly_history (id)
    WHERE trigger = 'webhook' AND state IN ('failed', 'canceled');
CREATE INDEX duly_kept_unprocessed ON duly_kept (id)
    WHERE trigger = 'webhook' AND state IN ('failed', 'canceled');
CREATE INDEX duly_inbox_filtered ON duly_inbox (id) WHERE job_id IS NULL;
CREATE INDEX duly_inbox_older_job ON duly_inbox (id) WHERE job_id < id;

CREATE INDEX duly_audit_actor ON duly_audit (actor, id) WHERE actor IS NOT NULL;

CREATE INDEX duly_schedules_disabled ON duly_schedules (owner, id) WHERE NOT enabled;

-- In which zone the dashboard shows times to whoever has it and has not chosen another.
ALTER TABLE duly_tokens ADD COLUMN tz text;
