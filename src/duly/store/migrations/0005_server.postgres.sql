-- min_code: 1
-- API tokens for the server. Only the digest of a token is stored.
CREATE TABLE __schema__.tokens (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    digest text NOT NULL,
    scopes text NOT NULL,
    -- Limits the token to this owner's objects; NULL: no limit.
    owner text COLLATE "C",
    created_at bigint NOT NULL,
    created_by text,
    expires_at bigint,
    last_used_at bigint,
    revoked_at bigint,
    revoked_by text
);
CREATE UNIQUE INDEX tokens_digest ON __schema__.tokens (digest);

-- The id of the object that a request with an idempotency key creates, whether or not it exists
-- yet.
CREATE TABLE __schema__.requests (
    actor text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    fingerprint text NOT NULL,
    target uuid NOT NULL,
    -- Whether the object was created; one that has been removed since is not created again.
    done boolean NOT NULL DEFAULT false,
    expires_at bigint NOT NULL,
    PRIMARY KEY (actor, key)
);
CREATE INDEX requests_expiry ON __schema__.requests (expires_at);

-- Webhook requests as they were received. The outcome of a request is the outcome of its job; a
-- request without a job was filtered.
CREATE TABLE __schema__.inbox (
    id uuid PRIMARY KEY,
    webhook text COLLATE "C" NOT NULL,
    delivery text COLLATE "C" NOT NULL,
    type text,
    -- Deliveries about the same entity are processed in the order in which they arrived.
    entity text COLLATE "C",
    owner text COLLATE "C",
    headers text NOT NULL,
    body bytea NOT NULL,
    received_at bigint NOT NULL,
    job_id uuid
);
CREATE UNIQUE INDEX inbox_delivery ON __schema__.inbox (webhook, delivery);
CREATE INDEX inbox_webhook ON __schema__.inbox (webhook, id);
CREATE INDEX inbox_owner ON __schema__.inbox (owner, id) WHERE owner IS NOT NULL;
CREATE INDEX inbox_job ON __schema__.inbox (job_id) WHERE job_id IS NOT NULL;

-- The jobs of one entity belong to one batch, in which every job except the first is held. When the
-- first has ended, for whatever reason, the next is freed. A job that ends while it is held frees
-- no other job.
CREATE INDEX jobs_line ON __schema__.jobs (batch_id, id) WHERE trigger = 'webhook';

CREATE FUNCTION __schema__.free_next() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE next uuid;
BEGIN
    LOOP
        SELECT id INTO next FROM __schema__.jobs
            WHERE trigger = 'webhook' AND batch_id = OLD.batch_id AND hold = 'batch'
            ORDER BY id LIMIT 1;
        EXIT WHEN next IS NULL;
        UPDATE __schema__.jobs SET hold = NULL WHERE id = next AND hold = 'batch';
        -- Otherwise it was canceled at the same moment, and it is the turn of the job behind it.
        EXIT WHEN FOUND;
    END LOOP;
    RETURN NULL;
END $$;

CREATE TRIGGER jobs_line AFTER DELETE ON __schema__.jobs
    FOR EACH ROW WHEN (OLD.trigger = 'webhook' AND OLD.batch_id IS NOT NULL
        AND OLD.hold IS DISTINCT FROM 'batch')
    EXECUTE FUNCTION __schema__.free_next();

-- Addresses to which jobs and schedules POST. The secret is a reference (env:, file:), never a
-- value.
CREATE TABLE __schema__.endpoints (
    id uuid PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    url text NOT NULL,
    secret text,
    headers text NOT NULL,
    timeout_ms bigint NOT NULL,
    retry text,
    version integer NOT NULL DEFAULT 1,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
);
CREATE UNIQUE INDEX endpoints_name ON __schema__.endpoints (owner, name);

-- Other runtimes with their own crons, and their last answers.
CREATE TABLE __schema__.gateways (
    id uuid PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    url text NOT NULL,
    secret text,
    version integer NOT NULL DEFAULT 1,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    -- The last answer, when it came, and the error since then.
    crons text,
    seen_at bigint,
    error text,
    -- The time since which it has not answered.
    stale_since bigint
);
CREATE UNIQUE INDEX gateways_name ON __schema__.gateways (owner, name);

-- Counters for metrics; they only grow.
CREATE TABLE __schema__.counters (
    name text COLLATE "C" NOT NULL,
    labels text COLLATE "C" NOT NULL,
    value bigint NOT NULL,
    PRIMARY KEY (name, labels)
);

-- The trace to which a job belongs, if its caller was traced.
CREATE TABLE __schema__.traces (
    job_id uuid PRIMARY KEY,
    parent text NOT NULL
);

-- Recently ended jobs and decided ticks, for live events. Rows are added in about this order, so a
-- summary of each page range is enough and costs an insert nothing.
CREATE INDEX history_ended ON __schema__.history USING brin (completed_at)
    WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX ticks_decided ON __schema__.ticks USING brin (decided_at)
    WITH (pages_per_range = 16, autosummarize = on);
