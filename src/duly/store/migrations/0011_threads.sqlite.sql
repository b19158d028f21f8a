-- min_code: 1
-- How many sync actions a worker runs at the same time, and which of its functions need a thread.
ALTER TABLE duly_workers ADD COLUMN threads integer NOT NULL DEFAULT 0;
ALTER TABLE duly_workers ADD COLUMN threaded text NOT NULL DEFAULT '[]';
