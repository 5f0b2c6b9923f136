-- List the id ranges that are being dropped. The rows of their jobs are dropped before their logs.
select low, high from tenure.range where leaving is not null order by low
