-- Was this claim key ever used?
select true from tenure.claim where key = :claim_key::uuid
