-- An operation on many jobs keeps what its preview has found: counts by tenant, type and error, and examples.

alter table tenure.operation add column summary jsonb not null default '{}';
