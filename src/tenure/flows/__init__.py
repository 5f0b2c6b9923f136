"""Pictures of flows: a drawing for terminals and an SVG, made from the values that the store returns, without I/O.

`graph` makes boxes of the nodes, and folds them until no more than 60 are left. `path` finds the critical path.
`text` draws for terminals, `svg` the picture.
"""
