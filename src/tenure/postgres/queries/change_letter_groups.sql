-- Add to the counts of open dead letters of these groups.
update tenure.dead_letter_group
set open = open + change.by
from unnest(:groups::bigint[], :changes::bigint[]) as change (group_id, by)
where dead_letter_group.id = change.group_id
