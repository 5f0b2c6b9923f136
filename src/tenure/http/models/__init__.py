"""What goes over the wire, as models: the OpenAPI is written from them, and what clients send is checked by them.

    bytes ─▶ the guard: is it JSON? ─▶ a Body: are these its fields? ─▶ the route
    the route ─▶ `shown.py` writes the answer ─▶ bytes        (an answer's model only describes it)

One module for each module of routes, under its name. What they share is in `fields` (kinds of values, and what every
body has in common), `moves` (what became of a word about a job) and `refusal` (the answer when it is no). Each model is
one schema of the OpenAPI under its own name, so names are chosen for those who read them in a generated client. Every
field says what it is, with its unit and default, and every model has an example; tests see to both, to each example
being valid, and to the answers being as they are described.

What a body does not name is refused, so that a misspelt field is never silently ignored. Texts, times and numbers that
have a meaning are checked once more where they are used (`intake.py`), with the same words as everywhere.
"""
