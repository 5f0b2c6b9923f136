"""The shop: orders, and what happens after one."""
