#: Work in an empty folder. `trainshed init` writes a small training script, a job file and a Dockerfile.
trainshed init
#: The script is plain Python: `python train.py --epochs 3` runs it without trainshed. The job file names the script and its
#: hyperparameters. This runs the job:
trainshed run job.yaml
#: The last lines say where the model, the logs and the run's folder are. `status` says it again, at any time:
trainshed status
trainshed logs --last 3
ls runs/*/output
#: Lines such as `metric loss=0.5 epoch=1` are metrics. Run it once more with another learning rate, and compare:
trainshed run job.yaml --hp lr=0.5 --name faster
trainshed runs ls --sort loss
trainshed runs compare faster train
#: The report is one HTML file with the curves:
trainshed report faster
