"""What the bodies of all routes share: field types, what a call did to a job, and the error envelope.

    bytes ─▶ guard: is it JSON? ─▶ RequestBody: are the fields right? ─▶ the route's function
    function ─▶ `response.py` makes the JSON value ─▶ bytes         (a response model only describes it)

The bodies of a route are pydantic models in its own module of `routes/`: requests are checked by them, the OpenAPI is
written from them. Each model is one schema of the OpenAPI under its class name, and generated clients use that name.
Every field has a description with its unit and default. Examples come from the fields: `openapi.py` puts them together.
Tests check that both are there, that each example is valid, and that real responses match their models.

A request with an unknown field is refused. `tenure.jobs.validation` checks names, times and sizes once more where they
are used, with the same error texts for every surface.
"""
