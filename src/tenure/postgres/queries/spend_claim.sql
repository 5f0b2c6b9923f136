-- Which of these claim keys are free? Waits for calls that are spending them right now.
insert into tenure.claim (key) select unnest(:claim_keys::uuid[]) on conflict do nothing returning key
