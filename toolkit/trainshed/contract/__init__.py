"""The /opt/ml contract as data: paths, config files, argv rules, SM_* names, the failure file, errors.

It imports only `trainshed.base`, and nothing that is slow to import.
"""
