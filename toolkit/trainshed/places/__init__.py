"""What acts at the places of `runner/job/places.py`, which names it: the runner loads it by that name alone.

here        processes and containers of this machine; check_image: whether an image can train
ssh, ray    hosts on other machines, with a runner here
slurm, kubernetes
            queues, which have a job from its submission on
sagemaker   a job as a request, for export
"""
