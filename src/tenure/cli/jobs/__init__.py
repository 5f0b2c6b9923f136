"""`tenure jobs`: list jobs, show them, explain their state, cancel, move or rerun them."""
