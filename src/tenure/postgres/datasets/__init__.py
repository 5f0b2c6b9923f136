"""Datasets: their generations, what jobs add to them, cutovers, and the tasks that run for their events.

    datasets.py    `store.datasets`: declare and read
    pins.py        which generations a new job reads and writes
    outputs.py     what a completion adds, in its transaction; rows that are staged before it
    switches.py    cutover and rollback
    routing.py     subscriptions, and the jobs of events
    retention.py   replaced rows, old generations and routed events leave

`tenure.dataset.current_id` alone says which generation is current. A cutover changes it for a set of datasets in one
transaction, so a reader that reads the set in one statement never gets a mixed one.
"""
