-- Begin a round of alarms, unless another process began one a moment ago; return its time.
insert into tenure.alarm_round (at) values (clock_timestamp())
on conflict (one) do update set at = excluded.at
where alarm_round.at < excluded.at - :pause_s::double precision * interval '1 second'
returning at
