-- Read the registered contracts as they are stored now, and the digest that each had when it was registered.
select name, version, digest, declaration from tenure.contract order by registered_at, name, version
