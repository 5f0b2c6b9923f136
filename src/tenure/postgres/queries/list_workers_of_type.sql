-- List the live workers that know this type, and the options that the code of each declares, by contract.
select name, application, version,
       (select coalesce(jsonb_object_agg(entry.key, entry.value -> :type::text), '{}')::text
        from jsonb_each(declares) as entry
        where entry.value ? :type::text and (:contract::text is null or entry.key = :contract::text)) as options
from tenure.live_worker
where :type::text = any (types)
order by name
limit 1000
