-- Write what became of these items of an operation, and count it.
--
-- The operation's id and the state to be replaced come from the list, and `= any (array[…])` is `=` by which no join can be
-- ordered. Otherwise the planner, who knows nothing of a table that was just filled, would compare each of these items with
-- each that waits.
with item as materialized (
    select :id::bigint as operation_id, 'waiting' as before, id, code, why, made
    from unnest(:ids::bigint[], :codes::text[], :whys::text[], :made::bigint[]) as given (id, code, why, made)
),
ended as (
    update tenure.operation_item
    set state = case when item.code is null then 'done' else 'skipped' end, code = item.code, why = item.why, made = item.made
    from item
    where operation_item.operation_id = any (array[item.operation_id]) and item_id = any (array[item.id])
      and operation_item.state = any (array[item.before])
    returning operation_item.code
)
insert into tenure.operation_batch (operation_id, done, skipped)
select :id::bigint, count(*) filter (where code is null),
       coalesce((select jsonb_object_agg(code, number)
                 from (select code, count(*) as number from ended where code is not null group by code) as each), '{}')
from ended
having count(*) > 0
