-- Was this claim key ever used?
select from tenure.claim where key = :claim_key::uuid
