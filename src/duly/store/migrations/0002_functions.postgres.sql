-- min_code: 1
-- What workers publish of their functions, and the status that operators give them. An alias has a
-- row of its own, which follows the status of the function that it stands for.
CREATE TABLE __schema__.functions (
    name text PRIMARY KEY,
    kind text NOT NULL,
    app text NOT NULL,
    schema text NOT NULL,
    options text NOT NULL,
    internal boolean NOT NULL,
    alias_of text,
    -- What was ever published, by digest: a process of an earlier release that starts again beside a
    -- newer one changes nothing.
    seen text NOT NULL,
    published_at bigint NOT NULL,
    status text NOT NULL DEFAULT 'active'
        CHECK (status IN ('active', 'paused', 'deprecated', 'deleted')),
    status_by text,
    status_note text,
    status_at bigint
);

CREATE INDEX functions_status ON __schema__.functions (status) WHERE status <> 'active';
