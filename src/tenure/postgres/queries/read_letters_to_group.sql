-- Read these dead letters as they are now, and how they are counted; the error only of those that have no group yet.
--
-- A change that commits after this read has a row of its own in tenure.dead_letter_change, and is counted next.
select letter.id, letter.status, letter.contract, letter.tenant_id, letter.type, letter.reason_code, letter.created_at,
       cause.group_id, cause.status as counted, case when cause.letter_id is null then letter.last_error::text end
from tenure.dead_letter as letter left join tenure.dead_letter_cause as cause on cause.letter_id = letter.id
where letter.id = any (:ids::bigint[])
order by letter.id
