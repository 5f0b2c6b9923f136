-- Take this many ids for jobs that are made later.
select nextval('tenure.job_id_seq') from generate_series(1, :count::integer)
