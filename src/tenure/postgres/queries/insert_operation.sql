-- Store what a person wants done to all that a search finds.
insert into tenure.operation (of_letters, verb, query, options, tenant_id, per_second, created_by)
values (:of_letters::boolean, :verb::text, :query::text, :options::jsonb, :tenant::text, :per_second::double precision,
        :actor::text)
returning id
