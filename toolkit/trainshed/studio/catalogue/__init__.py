"""The catalogue of runs: an index made of the runs' folders, questions to it, tags, and what differs between runs.

refresh       finds the folders of runs and what has changed; indexed makes a row of one
index_file    keeps the rows (tables)
language      reads expressions, condition makes SQL of them, listing answers `trainshed ls`
labels        tags and notes in a run's folder
run_facts     all that a run's folder says, showing puts it on a screen, differences compares two (code_changes)
"""
