-- min_code: 1
-- How often a mutation has run again because a lock that its own statement asked for was not free.
ALTER TABLE duly_jobs ADD COLUMN lock_retries integer NOT NULL DEFAULT 0;
