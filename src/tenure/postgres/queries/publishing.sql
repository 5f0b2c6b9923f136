-- Are wake-ups written from now on?
update tenure.installation set publishing = :on::boolean
