-- Release this id range for other processes; where a live job is in it, do not drop it.
update tenure.range
set taken = null, leaving = case when :lives::boolean then null else leaving end
where low = :low::bigint
