-- min_code: 1
-- Calendars that code declares: the app (empty: no code), the declaration as it was last applied,
-- and since when code no longer declares it.
ALTER TABLE duly_calendars ADD COLUMN app text NOT NULL DEFAULT '';
ALTER TABLE duly_calendars ADD COLUMN declared text;
ALTER TABLE duly_calendars ADD COLUMN orphaned_at integer;
CREATE INDEX duly_calendars_app ON duly_calendars (app, name) WHERE app <> '';
-- What could not be applied of the newest set, and why.
ALTER TABLE duly_declarations ADD COLUMN left_out text;
