-- Which queues are paused? A queue comes into being with its first job; it has a row here once somebody paused it.
create table tenure.queue (
    name       text primary key,
    paused_at  timestamptz, -- NULL: not paused now
    paused_by  text,
    reason     text,
    resumed_at timestamptz,
    resumed_by text,
    check ((paused_at is null) = (paused_by is null) and (paused_at is not null or reason is null))
);

-- Where the roles have their grants already, the app can pause queues from now on; everybody granted can see them.
do $$
begin
    if to_regrole('tenure_app') is not null then
        if has_table_privilege('tenure_app', 'tenure.job', 'insert') then
            grant select, insert, update on tenure.queue to tenure_app;
            grant select on tenure.queue to tenure_read;
        end if;
    end if;
end
$$;
