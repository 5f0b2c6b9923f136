-- Turn the publishing of wake-ups on or off.
update tenure.installation set publishing = :on::boolean
