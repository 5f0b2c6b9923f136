-- Record in which group each of these dead letters is, and with which status it is counted there.
insert into tenure.dead_letter_cause (letter_id, group_id, status, fingerprint)
select cause.letter_id, cause.group_id, cause.status, g.fingerprint
from unnest(:ids::bigint[], :groups::bigint[], :statuses::text[]) as cause (letter_id, group_id, status)
join tenure.dead_letter_group as g on g.id = cause.group_id
on conflict (letter_id) do update set status = excluded.status
