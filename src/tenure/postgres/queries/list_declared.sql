-- List the schedules of an application that are stored as the caller declares them.
select name
from tenure.schedule join jsonb_each_text(:fingerprints::jsonb) as given (name, fingerprint) using (name, fingerprint)
where application = :application::text and in_code and withdrawn_at is null
