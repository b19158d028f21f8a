-- min_code: 1
-- Calendars that code declares: the app (empty: no code), the declaration as it was last applied,
-- and since when code no longer declares it.
ALTER TABLE __schema__.calendars ADD COLUMN app text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE __schema__.calendars ADD COLUMN declared text;
ALTER TABLE __schema__.calendars ADD COLUMN orphaned_at bigint;
CREATE INDEX calendars_app ON __schema__.calendars (app, name) WHERE app <> '';
-- What could not be applied of the newest set, and why.
ALTER TABLE __schema__.declarations ADD COLUMN left_out text;
