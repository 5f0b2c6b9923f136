-- List the id ranges in which verbose payloads may be left, oldest first.
select low, high from tenure.range where leaving is null and not faded order by low
