"""The /opt/ml contract as data: paths, config files, argv rules, SM_* names, the failure file, errors.

The ground floor: it imports nothing else of trainshed, and nothing that is slow to import.
"""
