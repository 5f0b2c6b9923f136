-- End a session.
delete from tenure.dashboard_session where token_hash = :token_hash::bytea
