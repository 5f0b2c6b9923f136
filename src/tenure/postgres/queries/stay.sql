-- Let go of this range; for good where a job lives in it.
update tenure.range
set taken = null, leaving = case when :lives::boolean then null else leaving end
where low = :low::bigint
