-- List the rights that a process of Tenure needs and this role does not have: table and kind of access.
select needed.relation, needed.privilege
from unnest(:relations::text[], :privileges::text[]) as needed (relation, privilege)
where to_regclass('tenure.' || needed.relation) is not null
  and not has_table_privilege(to_regclass('tenure.' || needed.relation), needed.privilege)
order by needed.relation, needed.privilege
