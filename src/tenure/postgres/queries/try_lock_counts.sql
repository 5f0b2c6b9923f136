-- Keep others from folding or correcting counts until this transaction ends; tell whether none does so now.
select pg_try_advisory_xact_lock(hashtextextended('tenure.fold_counts', 0))
