"""The numpy float64 twins of the policy losses: value, analytic gradient and metrics.

Written from the papers and from the definitions of the conformance format, one response at a time and with value and
derivative side by side; nothing is shared with the cells but the definition, so that the two can disagree. numpy only.
"""
