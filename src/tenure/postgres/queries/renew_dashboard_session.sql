-- Give a session a new token. The old one stays valid for a short time, because requests with it may be under way.
-- Of concurrent callers the lock lets one renew it: the others find an old token that is no longer old enough.
with old as materialized (
    select * from tenure.dashboard_session where token_hash = :token_hash::bytea for update
),
shortened as (
    update tenure.dashboard_session as session
    set expires_at = least(old.expires_at, clock_timestamp() + :grace_ms::bigint * interval '1 millisecond'),
        began_at = clock_timestamp()
    from old
    where session.token_hash = old.token_hash and clock_timestamp() <= old.expires_at
      and old.began_at < clock_timestamp() - :renew_ms::bigint * interval '1 millisecond'
    returning old.key_hash, old.expires_at
)
insert into tenure.dashboard_session (token_hash, key_hash, expires_at)
select :new_hash::bytea, key_hash, expires_at from shortened
returning true
