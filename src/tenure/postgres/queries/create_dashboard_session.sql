-- Store the session of a person who has logged in, and delete up to 100 sessions that have ended.
with ended as (
    delete from tenure.dashboard_session
    where token_hash in (
        select token_hash from tenure.dashboard_session where expires_at < clock_timestamp()
        order by expires_at limit 100 for update skip locked
    )
)
insert into tenure.dashboard_session (token_hash, key_hash, expires_at)
values (:token_hash::bytea, :key_hash::bytea, clock_timestamp() + :lifetime_ms::bigint * interval '1 millisecond')
