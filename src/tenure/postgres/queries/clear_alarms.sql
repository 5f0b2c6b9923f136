-- End the alarms of these kinds that were not seen since a round began; those that never fired leave no trace.
with clock as materialized (
    select clock_timestamp() as t
),
over as materialized (
    select id, fired_at from tenure.alarm
    where cleared_at is null and kind = any (:kinds::text[]) and seen_at < :began::timestamptz
    order by kind, tenant_id, subject
    for update
),
forgotten as (
    delete from tenure.alarm where id in (select id from over where fired_at is null)
)
update tenure.alarm set cleared_at = t
from clock
where id in (select id from over where fired_at is not null)
returning id
