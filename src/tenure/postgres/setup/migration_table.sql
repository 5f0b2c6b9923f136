-- Create the table that records the applied migrations.
create schema if not exists tenure;
create table if not exists tenure.migration (
    number     integer primary key,
    name       text not null,
    checksum   text not null,
    applied_at timestamptz not null default clock_timestamp()
);
