-- Insert a schedule, as yet without a fire time; nothing if the application has one of this name.
insert into tenure.schedule (application, name, tenant_id, in_code, declaration, fingerprint, declared_by)
values (:application::text, :name::text, :tenant_id::text, :in_code::boolean, :declaration::jsonb, '', :declared_by::text)
on conflict (application, name) do nothing
