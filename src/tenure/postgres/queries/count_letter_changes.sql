-- Count the changes of dead letters that no group has yet, up to a limit.
select count(*) from (select from tenure.dead_letter_change limit :limit::bigint) as change
