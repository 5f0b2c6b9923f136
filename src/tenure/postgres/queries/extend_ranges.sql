-- Are there id ranges ahead of the last id given? Make what is missing.
select tenure.extend_ranges(:ahead::integer)
