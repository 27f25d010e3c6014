"""The studio: what people look at and repeat. Pages, the catalogue of runs, models, rules, tuning jobs, pipelines of steps."""
