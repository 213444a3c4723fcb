"""Policy losses as MindSpore cells over one body; `registry` finds them by name.

`policy_loss` masks, takes the ratio, calls the loss's surrogate, aggregates, adds KL and entropy, and measures.
`clipped` and `surrogates` hold what is each loss's own, with the paper's equation. The float64 twins in numpy that
tests compare with are in `algorithms.twins`.
"""
