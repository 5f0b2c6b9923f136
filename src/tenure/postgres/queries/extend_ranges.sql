-- Make the id ranges that are missing ahead of the last id given; return how many.
select tenure.extend_ranges(:ahead::integer)
