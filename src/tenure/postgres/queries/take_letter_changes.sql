-- Take the oldest changes of dead letters that are not counted yet. Only the transaction with the lock of groups does this.
delete from tenure.dead_letter_change
where id = any (array(select id from tenure.dead_letter_change order by id limit :limit::bigint))
returning letter_id
