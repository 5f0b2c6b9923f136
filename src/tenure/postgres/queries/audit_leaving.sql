-- Which ranges are on their way out? The rows of their jobs leave before their logs.
select low, high from tenure.range where leaving is not null order by low
