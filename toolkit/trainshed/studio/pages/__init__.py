"""Pages about runs: the report of one, the parts of a comparison. HTML in one file; the one engine of charts draws in it.

engine     puts charts.js into a page, and figures as JSON; chart, bars: records of what is drawn
facts      reads a run; report puts its page together
curves     with thin, events; timeline and schedule; profiled with machine_charts
importance which hyperparameters a metric depends on
markup     escapes
"""
