-- Select nothing: the first statement begins the caller's transaction.
select
