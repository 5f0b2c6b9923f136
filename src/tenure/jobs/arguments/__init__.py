"""A task's arguments and result as JSON, and back as Python values by the function's type hints.

signature   a call of the function ↔ a JSON object of parameter name → value
encode      Python value → JSON
decode      JSON → Python value
type_hints  which decoder a type hint asks for
"""
