-- Read which job this one was run again as, and which one it runs again, directly or through its dead letter.
select coalesce((select as_job_id from tenure.rerun where job_id = :id::bigint),
                (select requeued_as from tenure.dead_letter where job_id = :id::bigint)),
       coalesce((select job_id from tenure.rerun where as_job_id = :id::bigint),
                (select letter.job_id from tenure.dead_letter as letter
                 where letter.id = coalesce((select origin_letter from tenure.job where id = :id::bigint),
                                            (select origin_letter from tenure.job_done where id = :id::bigint))))
