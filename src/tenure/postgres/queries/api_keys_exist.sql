-- Was a key ever made, revoked or not?
select exists (select from tenure.api_key)
