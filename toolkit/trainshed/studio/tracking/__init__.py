"""Hands runs on to other people's tools: tables, TensorBoard, MLflow.

tables          metrics as CSV, one row a value or one row a step
exported        what there is to be sent of a run, as values
mlflow_names    names and values as MLflow takes them
mlflow_store    one run in MLflow: found or made, and sent what it lacks
mlflow_live     the process that sends while a run runs
"""
