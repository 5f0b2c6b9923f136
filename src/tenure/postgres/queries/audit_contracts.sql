-- The registered contracts as they are written now, and the fingerprint that each had when it was registered.
select name, version, digest, declaration from tenure.contract order by registered_at, name, version
