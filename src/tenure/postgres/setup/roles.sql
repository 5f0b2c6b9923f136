-- Create the roles: the owner migrates, the app works, the reader reads.
do $$ begin if to_regrole('tenure_owner') is null then create role tenure_owner nologin; end if;
exception when duplicate_object or unique_violation then null; end $$;
do $$ begin if to_regrole('tenure_app') is null then create role tenure_app nologin; end if;
exception when duplicate_object or unique_violation then null; end $$;
do $$ begin if to_regrole('tenure_read') is null then create role tenure_read nologin; end if;
exception when duplicate_object or unique_violation then null; end $$;
