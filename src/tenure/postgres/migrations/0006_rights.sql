-- A database with separate roles: its app uses the new tables and the function without `tenure migrate --grants`.
do $$
begin
    if exists (select from pg_namespace where nspname = 'tenure' and nspowner = to_regrole('tenure_owner')) then
        grant insert, update, delete on tenure.published_queue, tenure.unique_job to tenure_app;
        grant execute on function tenure.enqueue to tenure_app;
    end if;
end
$$;
