"""The further pages of the web page: tunings, pipelines, models, lineage, data, storage. The command line's numbers, shown.

parts      what a view is made of: facts, tables, bars, a graph, a text, charts
batches    what tunings and pipelines share; tunings, pipelines, shelf (models), ancestors (lineage, data), stores
every      the table of all, by the word in the address
"""
