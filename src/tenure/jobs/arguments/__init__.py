"""A task's arguments and result as JSON, and back as Python values by the function's type hints.

signature   a call of the function ↔ a JSON object of parameter name → value
encode      Python value → JSON
decode      JSON → Python value: plain hints by a look at the value's class, all others by pydantic
schema      a type hint as a pydantic validator, with the forms that `encode` stores
"""
