"""The further pages of the web page: tunings, pipelines, models, lineage, data, storage. The command line's numbers, shown.

parts      what a view is made of: facts, tables, bars, a graph, a text, charts
batches    which tunings and pipelines there are; tunings, pipelines, shelf (models), ancestors (lineage, data), stores
every      the table of all, by the word in the address
"""
