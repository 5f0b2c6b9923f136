-- A statement that asks nothing: with it the caller's transaction begins.
select
