#: A model that is too large for one device can be cut into stages: each rank holds a part of the layers. This example is
#: small, so that it runs anywhere, and is cut all the same. `pip install 'trainshed[torch]'` brings PyTorch.
cp -r "$CHECKOUT/examples/pipeline/." .
cat train.py
#: `PipelineModel` wraps the model, and the function below `@pipe.step` is one step. The job file asks for two ranks:
cat job.yaml
#: How would it be cut? `plan` measures the layers, and says what each stage needs, without training:
trainshed plan --stages 2 --microbatches 4 train.py
#: Train it. The model that it leaves is whole, and loads on one device:
trainshed run job.yaml
ls runs/*/algo-1/model
#: Large models of Hugging Face, tensor parallelism and shards (FSDP) go the same way: [cut a model into
#: stages](../pipeline.md), [divide modules](../tensor.md), [the ways beside each other](../evidence/ways.md).
