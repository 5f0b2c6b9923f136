-- Is this claim key free? Waits for a call that is spending it right now.
insert into tenure.claim (key) values (:claim_key::uuid) on conflict do nothing returning true
