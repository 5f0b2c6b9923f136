-- Mute alarms for some time: a kind, a tenant or a subject, each of which may be left out.
insert into tenure.alarm_mute (until, kind, tenant_id, subject, muted_by, reason)
values (clock_timestamp() + :seconds::double precision * interval '1 second', :kind::text, :tenant::text, :subject::text,
        :actor::text, :reason::text)
returning id, until
