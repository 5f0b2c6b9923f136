-- Find the session that has this token and has not ended; tells whether its token is old enough to be replaced.
select key_hash, began_at < clock_timestamp() - :renew_ms::bigint * interval '1 millisecond'
from tenure.dashboard_session
where token_hash = :token_hash::bytea and clock_timestamp() <= expires_at
