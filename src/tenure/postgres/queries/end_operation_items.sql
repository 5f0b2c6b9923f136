-- Write what became of these items of an operation, and count it.
with ended as (
    update tenure.operation_item
    set state = case when item.code is null then 'done' else 'skipped' end, code = item.code, why = item.why, made = item.made
    from unnest(:ids::bigint[], :codes::text[], :whys::text[], :made::bigint[]) as item (id, code, why, made)
    where operation_id = :id::bigint and item_id = item.id and operation_item.state = 'waiting'
    returning operation_item.code
)
insert into tenure.operation_batch (operation_id, done, skipped)
select :id::bigint, count(*) filter (where code is null),
       coalesce((select jsonb_object_agg(code, number)
                 from (select code, count(*) as number from ended where code is not null group by code) as each), '{}')
from ended
having count(*) > 0
