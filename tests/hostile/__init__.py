"""Models and training loops of many repositories' kinds, trained in a pipeline and in one process, and compared.

combinations    how many ranks, and which schedule
table           the cases: `models/`, `loops/` and `architectures/`, one file a topic
kit             what a case's script holds: the pipeline, or one process
rank            a process that plays cases; player starts such processes, and ends those that hang
judge           compares what ranks found with what one process found
results         keeps results on disk, and makes the table
"""
