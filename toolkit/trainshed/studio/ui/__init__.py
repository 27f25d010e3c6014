"""`trainshed ui`: a web page over the runs of this machine, for the person who started it alone. Needs the extra `ui`.

guard      says who may ask, by what entry holds; connection: how long a connection may say nothing
catalog    which runs there are; plots, measured, logbook, browse, details: what is told of one; actions: what buttons do
views/     further pages; offline: a copy without a server; labelling: tags and notes
static/    the page; its charts are drawn by `pages/static`, as are those of files
"""
