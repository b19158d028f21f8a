-- min_code: 1
-- Only PostgreSQL needs a different index; this step keeps the numbers of both databases the same.
REINDEX duly_jobs_limit;
