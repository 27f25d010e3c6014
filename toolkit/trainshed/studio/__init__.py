"""The studio: pages, the catalogue of runs, models, rules, tuning jobs, pipelines of steps."""
