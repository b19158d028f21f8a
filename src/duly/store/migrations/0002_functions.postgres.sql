-- min_code: 1
-- The functions that workers publish, and the status that operators set. An alias has its own row,
-- which follows the status of the function that it stands for.
CREATE TABLE __schema__.functions (
    name text PRIMARY KEY,
    kind text NOT NULL,
    app text NOT NULL,
    schema text NOT NULL,
    options text NOT NULL,
    internal boolean NOT NULL,
    alias_of text,
    -- Digests of every version ever published. If a process of an earlier release restarts
    -- alongside a newer one, it changes nothing.
    seen text NOT NULL,
    published_at bigint NOT NULL,
    status text NOT NULL DEFAULT 'active'
        CHECK (status IN ('active', 'paused', 'deprecated', 'deleted')),
    status_by text,
    status_note text,
    status_at bigint
);

CREATE INDEX functions_status ON __schema__.functions (status) WHERE status <> 'active';
