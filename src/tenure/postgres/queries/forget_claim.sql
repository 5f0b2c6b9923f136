-- A claim that won nothing gives its key back, so that the caller may ask again with it.
delete from tenure.claim where key = :claim_key::uuid
