"""Policy losses as MindSpore cells over one body; `registry` finds them by name.

`policy_loss` masks, takes and clips the ratio, calls the loss's surrogate, aggregates, adds KL and entropy, and
measures. `clipped` and `surrogates` hold each loss's own part, with the paper's equation. Tests compare them with the
float64 twins in numpy of `tools/conformance`.
"""
