"""Pages about runs: the report of one, the parts of a comparison. HTML and SVG by hand, in one file, without scripts.

facts      reads a run; report puts its page together
curves     with chart, scale, thin; timeline and schedule with bars; profiled with machine_charts
markup     escapes
"""
