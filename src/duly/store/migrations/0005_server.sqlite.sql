-- min_code: 1
-- API tokens for the server. Only the digest of a token is stored.
CREATE TABLE duly_tokens (
    id text PRIMARY KEY,
    name text NOT NULL,
    digest text NOT NULL,
    scopes text NOT NULL,
    -- Limits the token to this owner's objects; NULL: no limit.
    owner text,
    created_at integer NOT NULL,
    created_by text,
    expires_at integer,
    last_used_at integer,
    revoked_at integer,
    revoked_by text
);
CREATE UNIQUE INDEX duly_tokens_digest ON duly_tokens (digest);

-- The id of the object that a request with an idempotency key creates, whether or not it exists
-- yet.
CREATE TABLE duly_requests (
    actor text NOT NULL,
    key text NOT NULL,
    fingerprint text NOT NULL,
    target text NOT NULL,
    -- Whether the object was created; one that has been removed since is not created again.
    done integer NOT NULL DEFAULT 0,
    expires_at integer NOT NULL,
    PRIMARY KEY (actor, key)
) WITHOUT ROWID;
CREATE INDEX duly_requests_expiry ON duly_requests (expires_at);

-- Webhook requests as they were received. The outcome of a request is the outcome of its job; a
-- request without a job was filtered.
CREATE TABLE duly_inbox (
    id text PRIMARY KEY,
    webhook text NOT NULL,
    delivery text NOT NULL,
    type text,
    -- Deliveries about the same entity are processed in the order in which they arrived.
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

-- The jobs of one entity belong to one batch, in which every job except the first is held. When the
-- first has ended, for whatever reason, the next is freed. A job that ends while it is held frees
-- no other job.
CREATE INDEX duly_jobs_line ON duly_jobs (batch_id, id) WHERE trigger = 'webhook';

CREATE TRIGGER duly_jobs_free_next AFTER DELETE ON duly_jobs
    WHEN OLD.trigger = 'webhook' AND OLD.batch_id IS NOT NULL AND OLD.hold IS NOT 'batch'
BEGIN
    UPDATE duly_jobs SET hold = NULL WHERE id = (
        SELECT id FROM duly_jobs
        WHERE trigger = 'webhook' AND batch_id = OLD.batch_id AND hold = 'batch'
        ORDER BY id LIMIT 1);
END;

-- Addresses to which jobs and schedules POST. The secret is a reference (env:, file:), never a
-- value.
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

-- Other runtimes with their own crons, and their last answers.
CREATE TABLE duly_gateways (
    id text PRIMARY KEY,
    owner text NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    secret text,
    version integer NOT NULL DEFAULT 1,
    created_at integer NOT NULL,
    updated_at integer NOT NULL,
    -- The last answer, when it came, and the error since then.
    crons text,
    seen_at integer,
    error text,
    -- The time since which it has not answered.
    stale_since integer
);
CREATE UNIQUE INDEX duly_gateways_name ON duly_gateways (owner, name);

-- Counters for metrics; they only grow.
CREATE TABLE duly_counters (
    name text NOT NULL,
    labels text NOT NULL,
    value integer NOT NULL,
    PRIMARY KEY (name, labels)
) WITHOUT ROWID;

-- The trace to which a job belongs, if its caller was traced.
CREATE TABLE duly_traces (
    job_id text PRIMARY KEY,
    parent text NOT NULL
) WITHOUT ROWID;

-- Recently decided ticks, for live events.
CREATE INDEX duly_ticks_decided ON duly_ticks (decided_at);
