-- List the versions of Tenure of the live workers, with how many and some names of each.
select version, count(*), (array_agg(name order by name))[:5] as names
from tenure.live_worker
where version is not null
group by version
order by version
