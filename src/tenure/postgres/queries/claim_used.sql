-- Which of these claim keys were ever used?
select key from tenure.claim where key = any (:claim_keys::uuid[])
