"""Where runs come from, and what came of them.

family     runs that others come from, found by what they have noted and by the hashes of their models and data
ancestry   what `trainshed lineage` shows of one run, as plain values
outline    the same as text
drawing    the same as a picture
"""
