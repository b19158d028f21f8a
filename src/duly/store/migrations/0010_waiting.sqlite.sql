-- min_code: 1
-- Only PostgreSQL needs another index; the steps of both are numbered alike.
REINDEX duly_jobs_limit;
