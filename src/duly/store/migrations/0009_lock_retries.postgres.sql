-- min_code: 1
-- How often a mutation was run again because a lock that its own statement requested was not free.
ALTER TABLE __schema__.jobs ADD COLUMN lock_retries integer NOT NULL DEFAULT 0;
