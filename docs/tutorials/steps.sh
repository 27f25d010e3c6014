#: A pipeline is a file of steps: jobs that use what other jobs have made, conditions, and registrations of models.
cp -r "$CHECKOUT/examples/steps/." .
cat pipeline.yaml
#: `${steps.prepare.model}` is the folder that the step `prepare` has written, and makes `train` wait for it. Look at the
#: order first, then run it:
trainshed steps show pipeline.yaml
trainshed steps run pipeline.yaml
#: Change a parameter. What has not changed is not run again:
trainshed steps run pipeline.yaml --param epochs=6
#: The model is a version in the store, with the stage champion. Get it, compared with its hashes:
trainshed models ls digits
trainshed models get digits@champion model
