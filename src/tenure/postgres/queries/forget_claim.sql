-- These claim keys won nothing: they may be used again.
delete from tenure.claim where key = any (:claim_keys::uuid[])
