#: A training that can be interrupted needs two things: it saves its state, and it reads it when it begins. The script that
#: `trainshed init` writes does both, in the folder SM_CHECKPOINT_DIR.
trainshed init
#: Start a training that takes long, in the background, and wait until it has trained for a while:
trainshed run job.yaml --hp epochs=100000 --detach
until trainshed logs | grep -q "epoch=100$"; do sleep 0.2; done
#: Stop it. The script gets SIGTERM, and has time to save:
trainshed stop
trainshed status
#: Go on in the same folder. The second line of the log says at which epoch; `--hp` shortens what is left:
trainshed resume --hp epochs=1
trainshed logs | grep "going on at epoch"
#: Interruptions can be tried out. This takes the machine away after half a second of training, as spot capacity does, and
#: starts the job again with its checkpoints:
trainshed run job.yaml --name spot --hp epochs=2000 --spot-interrupt-after 0.5s
trainshed logs spot | grep "going on at epoch"
