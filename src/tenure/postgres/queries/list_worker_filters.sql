-- List the queues, contracts and types that live workers take.
select distinct queues, contracts, types from tenure.live_worker limit 1000
