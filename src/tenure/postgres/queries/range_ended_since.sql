-- Tell whether a job of this id range ended less than :keep_sec ago.
select exists (
    select from tenure.job_done
    where id >= :low::bigint and id < :high::bigint
      and finished_at >= clock_timestamp() - :keep_sec::double precision * interval '1 second')
