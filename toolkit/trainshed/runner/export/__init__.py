"""Jobs as other systems' descriptions: pure functions from a `Job` to manifests and requests, which nobody here sends.

kubernetes   an Indexed Job with a headless Service, or a JobSet
sagemaker    a CreateTrainingJob request
command      `trainshed export`
"""
