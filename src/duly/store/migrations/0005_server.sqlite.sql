-- min_code: 1
-- Who may use the server. Of a token only its digest is kept.
CREATE TABLE duly_tokens (
    id text PRIMARY KEY,
    name text NOT NULL,
    digest text NOT NULL,
    scopes text NOT NULL,
    -- Whose things it is for; empty: everybody's.
    owner text,
    created_at integer NOT NULL,
    created_by text,
    expires_at integer,
    last_used_at integer,
    revoked_at integer,
    revoked_by text
);
CREATE UNIQUE INDEX duly_tokens_digest ON duly_tokens (digest);

-- Which id the thing has that a request with an idempotency key makes, made already or not.
CREATE TABLE duly_requests (
    actor text NOT NULL,
    key text NOT NULL,
    fingerprint text NOT NULL,
    target text NOT NULL,
    -- Whether it was made; what was removed since is not made again.
    done integer NOT NULL DEFAULT 0,
    expires_at integer NOT NULL,
    PRIMARY KEY (actor, key)
) WITHOUT ROWID;
CREATE INDEX duly_requests_expiry ON duly_requests (expires_at);

-- Webhooks as they were received. What became of one is what became of its job; without one it was
-- filtered.
CREATE TABLE duly_inbox (
    id text PRIMARY KEY,
    webhook text NOT NULL,
    delivery text NOT NULL,
    type text,
    -- Deliveries about the same entity are processed in the order of their arrival.
    entity text,
    owner text,
    headers text NOT NULL,
    body blob NOT NULL,
    received_at integer NOT NULL,
    job_id text
);
CREATE UNIQUE INDEX duly_inbox_delivery ON duly_inbox (webhook, delivery);
CREATE INDEX duly_inbox_webhook ON duly_inbox (webhook, id);
CREATE INDEX duly_inbox_owner ON duly_inbox (owner, id) WHERE owner IS NOT NULL;
CREATE INDEX duly_inbox_job ON duly_inbox (job_id) WHERE job_id IS NOT NULL;

-- The jobs of one entity belong to one batch, of which only the first is not held. When that one has
-- ended, however it did, the next is freed; one that ends while it is held frees nobody.
CREATE INDEX duly_jobs_line ON duly_jobs (batch_id, id) WHERE trigger = 'webhook';

CREATE TRIGGER duly_jobs_free_next AFTER DELETE ON duly_jobs
    WHEN OLD.trigger = 'webhook' AND OLD.batch_id IS NOT NULL AND OLD.hold IS NOT 'batch'
BEGIN
    UPDATE duly_jobs SET hold = NULL WHERE id = (
        SELECT id FROM duly_jobs
        WHERE trigger = 'webhook' AND batch_id = OLD.batch_id AND hold = 'batch'
        ORDER BY id LIMIT 1);
END;

-- Addresses that jobs and schedules POST to. The secret is a reference (env:, file:), never a value.
CREATE TABLE duly_endpoints (
    id text PRIMARY KEY,
    owner text NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    secret text,
    headers text NOT NULL,
    timeout_ms integer NOT NULL,
    retry text,
    version integer NOT NULL DEFAULT 1,
    created_at integer NOT NULL,
    updated_at integer NOT NULL
);
CREATE UNIQUE INDEX duly_endpoints_name ON duly_endpoints (owner, name);

-- Other runtimes with crons of their own, and what they said last.
CREATE TABLE duly_gateways (
    id text PRIMARY KEY,
    owner text NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    secret text,
    version integer NOT NULL DEFAULT 1,
    created_at integer NOT NULL,
    updated_at integer NOT NULL,
    -- The last answer, when it came, and what went wrong since.
    crons text,
    seen_at integer,
    error text,
    -- Since when it has given no answer.
    stale_since integer
);
CREATE UNIQUE INDEX duly_gateways_name ON duly_gateways (owner, name);

-- Counts that only grow, for those who measure.
CREATE TABLE duly_counters (
    name text NOT NULL,
    labels text NOT NULL,
    value integer NOT NULL,
    PRIMARY KEY (name, labels)
) WITHOUT ROWID;

-- The trace that a job belongs to, if its caller was traced.
CREATE TABLE duly_traces (
    job_id text PRIMARY KEY,
    parent text NOT NULL
) WITHOUT ROWID;

-- What was decided lately, for live events.
CREATE INDEX duly_ticks_decided ON duly_ticks (decided_at);
