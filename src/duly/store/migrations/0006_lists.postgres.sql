-- min_code: 1
-- So that lists answer soon also where they find little. Most jobs are in the default queue and
-- succeed: they pay nothing for this.
CREATE INDEX history_queue ON __schema__.history (queue, id) WHERE queue <> 'default';
-- Those that have not succeeded; said so that no other statement is tempted to use it.
CREATE INDEX history_state ON __schema__.history (state, id) WHERE length(state) < 9;

-- Webhooks that have failed, those that were filtered, and those whose job was there before them.
CREATE INDEX history_unprocessed ON __schema__.history (id)
    WHERE trigger = 'webhook' AND state IN ('failed', 'canceled');
CREATE INDEX kept_unprocessed ON __schema__.kept (id)
    WHERE trigger = 'webhook' AND state IN ('failed', 'canceled');
CREATE INDEX inbox_filtered ON __schema__.inbox (id) WHERE job_id IS NULL;
CREATE INDEX inbox_older_job ON __schema__.inbox (id) WHERE job_id < id;

-- An action is looked for by how it begins, which only this order tells.
CREATE INDEX audit_action ON __schema__.audit (action COLLATE "C", id);
CREATE INDEX audit_actor ON __schema__.audit (actor, id) WHERE actor IS NOT NULL;

CREATE INDEX schedules_disabled ON __schema__.schedules (owner, id) WHERE NOT enabled;

-- In which zone the dashboard shows times to whoever has it and has not chosen another.
ALTER TABLE __schema__.tokens ADD COLUMN tz text;
