-- Ask for the discard of these dead letters, or approve it; each has a row in the answer. Where the contract wants two people,
-- the second one must be another. People are compared by the key that the store makes of their names, not by the spelling.
with letter as materialized (
    select row.*
    from unnest(:ids::bigint[]) as call (id)
    cross join lateral (select * from tenure.dead_letter where dead_letter.id = call.id for update) as row
),
judged as materialized (
    select id, status, discard_asked_by,
           case
               when status <> 'open' then 'closed'
               when :asks::boolean and discard_asked_by is not null then 'asked'
               when not :asks::boolean and discard_asked_by is null then 'unasked'
               when not :asks::boolean and discard_asked_key = :person_key::text then 'same'
           end as refusal
    from letter
),
noted as (
    update tenure.dead_letter
    set discard_asked_by = case when :asks::boolean then :person::text else dead_letter.discard_asked_by end,
        discard_asked_key = case when :asks::boolean then :person_key::text else dead_letter.discard_asked_key end,
        discard_asked_at = case when :asks::boolean then clock_timestamp() else dead_letter.discard_asked_at end,
        discard_reason = case when :asks::boolean then :reason::text else dead_letter.discard_reason end,
        discard_approved_by = case when :asks::boolean then null else :person::text end,
        discard_approved_at = case when :asks::boolean then null else clock_timestamp() end,
        status = case when :asks::boolean and :reviewers::integer > 1 then dead_letter.status else 'discarded' end,
        updated_at = clock_timestamp()
    from judged
    where dead_letter.id = any (array[judged.id]) and judged.refusal is null
)
select id, refusal, status, discard_asked_by from judged
