#: A tuning job runs a job many times with other hyperparameters, and finds the best. Here is something to tune:
trainshed init
#: The tuning file says what may vary, and what is good:
cat > tune.yaml <<'END'
job: job.yaml
search:
  lr: {low: 0.01, high: 1, scale: log}
  epochs: [5, 10]
objective: minimize loss
strategy: random          # bayesian needs pip install 'trainshed[tune]'
max_jobs: 6
max_parallel_jobs: 2
END
#: Its values can be seen before anything starts:
trainshed tune tune.yaml --dry-run
trainshed tune tune.yaml
#: Each trial is an ordinary run, with its logs and its report. The same command goes on where it was stopped:
trainshed tune tune.yaml --max-jobs 8
trainshed tune status
#: The page shows history, importance and parallel coordinates; `best.yaml` makes the best run again:
trainshed tune report
trainshed run tunes/tune/best.yaml
