"""Request and response bodies as pydantic models: requests are checked by them, the OpenAPI is written from them.

    bytes ─▶ guard: is it JSON? ─▶ RequestBody: are the fields right? ─▶ the route's function
    function ─▶ `response.py` makes the JSON value ─▶ bytes         (a response model only describes it)

Each module of routes has a module here, under the same name. They share `fields` (field types, and the base of all
requests), `outcomes` (what a call did to a job) and `errors` (the error envelope). Each model is one schema of the
OpenAPI under its class name, and generated clients use that name. Every field has a description with its unit and
default. Examples come from the fields: `openapi.py` puts them together. Tests check that both are there, that each
example is valid, and that real responses match their models.

A request with an unknown field is refused. `tenure.jobs.validation` checks names, times and sizes once more where they
are used, with the same error texts for every surface.
"""
