-- Nobody has spent this claim key: it stays free.
delete from tenure.claim where key = :claim_key::uuid
