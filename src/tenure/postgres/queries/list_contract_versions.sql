-- List every version of every registered contract, oldest first.
select name, version, declaration, registered_at from tenure.contract order by registered_at, name, version
