-- This range leaves from now on, whatever becomes of the process that began it.
update tenure.range set leaving = true where low = :low::bigint
