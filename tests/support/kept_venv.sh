#!/usr/bin/env bash
# Makes .venv by the command given, or takes the packages that an earlier checkout on this machine has kept for the same pins:
# hard links, so that it costs seconds and no room.   tests/support/kept_venv.sh FOLDER COMMAND ...
set -euo pipefail
folder=$1
shift
[ ! -e .venv/ready ] || exec "$@"
pins=$({ cat pyproject.toml Makefile images/cpu/constraints.txt; /usr/bin/python3 --version; } | sha256sum | cut -c1-16)
kept=$folder/venv-$pins
if [ -d "$kept" ] && [ ! -e .venv ]; then
    echo "environment of the same pins: $kept"
    cp -al "$kept" .venv 2>/dev/null || { rm -rf .venv; cp -a "$kept" .venv; }
    # Programs and the link to the checkout name the folder that the environment was made in.
    made_in=$(cat "$kept/made-in")
    grep -rlIF "$made_in" .venv/bin .venv/pyvenv.cfg .venv/lib/python3.*/site-packages/*trainshed* | while read -r file; do
        text=$(sed "s|$made_in|$PWD|g" "$file"; echo .)
        rm "$file"  # the kept one stays as it is
        printf '%s' "${text%.}" >"$file"
    done
    chmod +x .venv/bin/*
    touch .venv/demo .venv/ready
fi
"$@"
if [ ! -d "$kept" ]; then
    # Bytecode of what nearly every process of the tests imports.
    .venv/bin/python -c 'import boto3, numpy, torch.distributed.tensor, transformers'
    rm -rf "$folder"/venv-*
    mkdir -p "$folder"
    rm -rf "$kept.new"
    cp -al .venv "$kept.new" 2>/dev/null || { rm -rf "$kept.new"; cp -a .venv "$kept.new"; }
    pwd >"$kept.new/made-in"
    mv "$kept.new" "$kept"
fi
