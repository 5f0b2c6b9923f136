-- End mutes before their time: those of exactly this kind, tenant and subject.
update tenure.alarm_mute set ended_at = clock_timestamp(), ended_by = :actor::text
where until > clock_timestamp() and ended_at is null and kind is not distinct from :kind::text
  and tenant_id is not distinct from :tenant::text and subject is not distinct from :subject::text
returning id
