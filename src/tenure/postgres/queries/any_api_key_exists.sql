-- Tell whether an API key was ever made, revoked or not.
select exists (select from tenure.api_key)
